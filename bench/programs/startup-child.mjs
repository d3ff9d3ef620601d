/**
 * A process that has just been started: imports cuffi and allocates, if its argument says so, and says how
 * many nanoseconds both took. Plain JavaScript, so that node runs it as it is.
 */
const BYTE_LENGTH = 4096;
const what = process.argv[2];

const start = process.hrtime.bigint();
let imported = start;
if (what !== 'nothing') {
  const { DeviceBuffer } = await import('cuffi');
  imported = process.hrtime.bigint();
  if (what === 'cuffi') DeviceBuffer.allocate(BYTE_LENGTH);
}
const end = process.hrtime.bigint();
process.stdout.write(`${imported - start} ${end - start}\n`);
