/** y = a x + y, timed by the GPU's clock; all contestants but PyTorch run the same PTX. */
import { readFileSync } from 'node:fs';
import { DeviceBuffer, Module } from 'cuffi';
import { registerKernel } from 'cuffi/ffi';
import { sizeName } from '../format.ts';
import { type Case, inPeers, type OpenCase, PUBLIC, requireSuccess } from './case.ts';
import { GpuTimer } from './gpu-timer.ts';

const ptx = readFileSync(new URL('../peers/saxpy.ptx', import.meta.url), 'utf8');
const PARAMETERS = ['float32', 'pointer', 'pointer', 'uint32'] as const;

const MIB = 1 << 20;
/** Of a vector: x is read, y is read and written. */
const SIZES = [MIB, 16 * MIB, 256 * MIB];
const VECTORS_MOVED = 3;
/** The emulated driver computes no more than this. */
const MOST_WITHOUT_GPU = MIB;

const BLOCK = 256;
const FACTOR = 2.5;
/** x repeats so many integers, with which all results are exact. */
const PERIOD = 1024;

// For the emulated driver.
registerKernel('saxpy', {
  params: PARAMETERS,
  run({ view }, [a, xAt, yAt, n]) {
    const [x, y] = [view(xAt, Float32Array, n), view(yAt, Float32Array, n)];
    for (let at = 0; at < n; at += 1) y[at] = a * (x[at] as number) + (y[at] as number);
  },
});

export const saxpyCases: readonly Case[] = SIZES.map((vector) => ({
  name: 'kernel.saxpy',
  variant: sizeName(VECTORS_MOVED * vector),
  what: 'y = a x + y of float32; bytes are those that it reads and writes',
  calls: Math.max(2, Math.min(50, (64 * MIB) / vector)),
  rounds: 15,
  budgetMs: 400,
  isOnce: true,
  byteLength: VECTORS_MOVED * vector,
  isCopy: true,
  clock: 'gpu',
  limit: { by: 'memory', times: 1 },
  needsGpu: vector > MOST_WITHOUT_GPU,
  peers: [
    ...inPeers('gpu.saxpy', 'C'),
    { peer: 'cupy', batch: 'gpu.saxpy', name: 'cupy RawKernel' },
    { peer: 'torch', batch: 'gpu.saxpy', name: 'torch.add_' },
  ],
  open: () => openSaxpy(vector),
}));

function openSaxpy(byteLength: number): OpenCase {
  const timer = new GpuTimer();
  const { stream } = timer;
  const count = byteLength / Float32Array.BYTES_PER_ELEMENT;
  const host = repeated(count, 1);
  const module = Module.load(ptx);
  const kernel = module.kernel('saxpy', PARAMETERS);
  const [x, y] = [DeviceBuffer.allocate(byteLength), DeviceBuffer.allocate(byteLength)];
  x.copyFromSync(host);
  y.fill(0);
  y.context.synchronizeSync();
  const config = { grid: Math.ceil(count / BLOCK), block: BLOCK, stream };
  const launch = (calls: number): void => {
    for (let call = 0; call < calls; call += 1) kernel.launch(config, FACTOR, x, y, count);
  };
  return {
    contestants: [timer.contestant(PUBLIC, launch)],
    verify() {
      y.fill(0);
      y.context.synchronizeSync();
      launch(1);
      stream.synchronizeSync();
      const sums = y.copyToHostSync(new Uint8Array(byteLength));
      const expected = new Uint8Array(repeated(count, FACTOR).buffer);
      requireSuccess(Buffer.compare(sums, expected) === 0, 'saxpy');
    },
    close() {
      for (const resource of [x, y, module, timer]) resource.close();
    },
  };
}

/** What x holds, times a factor. */
function repeated(count: number, factor: number): Float32Array<ArrayBuffer> {
  const items = new Float32Array(count);
  for (let at = 0; at < PERIOD; at += 1) items[at] = factor * at;
  for (let done = PERIOD; done < count; done *= 2) items.copyWithin(done, 0, done);
  return items;
}
