/** What the GPU takes to copy items that do not follow each other, by cuffi’s kernel and others'. */
import { deviceArray, queuePitchedCopy, uint8 } from 'cuffi';
import { requirePattern, sizeName, writePattern } from '../bytes.ts';
import { GpuTimer } from '../gpu-time.ts';
import { type Case, inPeers, type OpenCase } from './case.ts';
import { PUBLIC } from './names.ts';

const MIB = 1 << 20;
const SIZES = [MIB, 16 * MIB, 256 * MIB];
/** Above, the emulated driver is left in peace. */
const MOST_WITHOUT_GPU = MIB;

/** Of a row, what is copied and what is not. */
const WIDTH = 256;
const STRIDE = 512;

export const arrayCopyCases: readonly Case[] = SIZES.map((byteLength) => ({
  name: 'array.copyTo.rows',
  variant: sizeName(byteLength),
  what: `copies rows of ${WIDTH} bytes, ${STRIDE} apart, on the device`,
  calls: Math.max(2, Math.min(50, (64 * MIB) / byteLength)),
  rounds: 15,
  passes: 2,
  budgetMs: 500,
  byteLength,
  isCopy: true,
  clock: 'gpu',
  limit: { by: 'memory', times: 2 },
  needsGpu: byteLength > MOST_WITHOUT_GPU,
  peers: inPeers('gpu.rows', 'C', 'torch', 'cupy'),
  open: () => openRows(byteLength),
}));

function openRows(byteLength: number): OpenCase {
  const timer = GpuTimer.create();
  const { stream } = timer;
  const rows = byteLength / WIDTH;
  const whole = deviceArray([rows, STRIDE], uint8);
  const source = whole.slice({}, { stop: WIDTH });
  const target = deviceArray([rows, WIDTH], uint8);
  const host = new Uint8Array(byteLength);
  writePattern(host);
  target.copyFromSync(host);
  target.copyTo(source);
  const byArray = (): void => source.copyTo(target, { stream });
  const byDriver = (): void =>
    queuePitchedCopy(
      { memory: target.buffer },
      { memory: whole.buffer, rowPitch: STRIDE },
      { width: WIDTH, height: rows },
      { stream },
    );
  const ways = [
    { name: PUBLIC, copy: byArray },
    { name: 'driver, 1 copy', copy: byDriver },
  ];
  return {
    contestants: ways.map(({ name, copy }) =>
      timer.contestant(name, (calls) => {
        for (let call = 0; call < calls; call += 1) copy();
      }),
    ),
    verify() {
      for (const { name, copy } of ways) {
        target.fill(0);
        target.buffer.context.synchronizeSync();
        copy();
        stream.synchronizeSync();
        target.buffer.copyToHostSync(host.fill(0));
        requirePattern(host, name);
      }
    },
    close() {
      for (const resource of [whole, target, timer]) resource.close();
    },
  };
}
