/**
 * A process that has just been started: imports what its argument says, allocates, and says how
 * many nanoseconds both took. Plain JavaScript, so that node runs it as it is.
 */
const BYTE_LENGTH = 4096;
const what = process.argv[2];

const start = process.hrtime.bigint();
let imported = start;
if (what === 'cuffi') {
  const { DeviceBuffer } = await import('cuffi');
  imported = process.hrtime.bigint();
  DeviceBuffer.allocate(BYTE_LENGTH);
}
const end = process.hrtime.bigint();
process.stdout.write(`${imported - start} ${end - start}\n`);
