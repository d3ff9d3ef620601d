/**
 * Allocating and freeing, beside the driver's calls alone and the pools of Python. All pools keep
 * what is not used, so that after the first time none asks the device for memory.
 */
import { Context, DeviceBuffer, MemoryPool, PinnedBuffer, pin, Stream } from 'cuffi';
import { type CUdeviceptr, cu, readHandle, writeUint64 } from 'cuffi/ffi';
import { inProcess } from '../measure.ts';
import { type Case, inPeers, type OpenCase, PUBLIC, RAW, requireSuccess } from './case.ts';
import { requireCopied } from './copies.ts';

const MIB = 1 << 20;
const PINNED_BYTE_LENGTH = 256 * MIB;
/** As for kernels: a batch is so short that V8 would go on compiling while it counts. */
const WARM_UP_MS = 800;

/** Eight bytes that the driver writes an address to. */
const out = writeUint64(0);

export const memoryCases: readonly Case[] = [
  {
    name: 'pool.allocate',
    variant: '1 MiB',
    what: 'allocates from a pool in a stream and closes; the driver: cuMemAllocFromPoolAsync, cuMemFreeAsync',
    calls: 500,
    byteLength: MIB,
    peers: [
      ...inPeers('pool.allocate', 'C', 'cuda.bindings'),
      { peer: 'cupy', batch: 'pool.allocate', name: 'cupy MemoryPool' },
      { peer: 'cupy', batch: 'pool.async.allocate', name: 'cupy MemoryAsyncPool' },
      { peer: 'torch', batch: 'pool.allocate', name: 'torch.empty' },
    ],
    open: openPool,
  },
  {
    name: 'DeviceBuffer.allocate',
    variant: '1 MiB',
    what: 'allocates device memory and closes; the driver: cuMemAlloc, cuMemFree',
    calls: 50,
    byteLength: MIB,
    peers: inPeers('device.allocate', 'C', 'cuda.bindings'),
    open: openDevice,
  },
  {
    name: 'PinnedBuffer.allocate',
    variant: '256 MiB',
    what: 'allocates page-locked host memory and closes; the driver: cuMemHostAlloc, cuMemFreeHost, or cuMemHostRegister of memory there is',
    calls: 1,
    rounds: 8,
    byteLength: PINNED_BYTE_LENGTH,
    peers: [
      { peer: 'C', batch: 'host.allocate', name: 'C, cuMemHostAlloc' },
      { peer: 'C', batch: 'host.map', name: 'C, mmap and register' },
      { peer: 'C', batch: 'host.register', name: 'C, register touched' },
      { peer: 'torch', batch: 'host.allocate', name: 'torch, pin_memory' },
    ],
    open: openPinned,
  },
];

function openPool(): OpenCase {
  const stream = Stream.create({ nonBlocking: true });
  const pool = MemoryPool.create();
  const { handle } = pool;
  const streamHandle = stream.handle;
  const settle = (): void => stream.synchronizeSync();
  return {
    contestants: [
      inProcess(
        PUBLIC,
        (calls) => {
          for (let call = 0; call < calls; call += 1) pool.allocate(MIB, { stream }).close();
        },
        settle,
        WARM_UP_MS,
      ),
      inProcess(
        RAW,
        (calls) => {
          let status = 0;
          for (let call = 0; call < calls; call += 1) {
            status |= cu.cuMemAllocFromPoolAsync(out, MIB, handle, streamHandle);
            status |= cu.cuMemFreeAsync(readHandle(out), streamHandle);
          }
          requireSuccess(status === 0, 'cuMemAllocFromPoolAsync');
        },
        settle,
      ),
    ],
    async verify() {
      const buffer = pool.allocate(MIB, { stream });
      await requireMemory(buffer, PUBLIC);
      buffer.close();
      cu.cuMemAllocFromPoolAsync(out, MIB, handle, streamHandle);
      const address = readHandle<CUdeviceptr>(out);
      settle();
      await requireMemory(DeviceBuffer.fromPointer(address, MIB), RAW);
      cu.cuMemFreeAsync(address, streamHandle);
      settle();
    },
    close() {
      pool.close();
      stream.close();
    },
  };
}

function openPinned(): OpenCase {
  const touched = new Uint8Array(PINNED_BYTE_LENGTH).fill(1);
  return {
    contestants: [
      inProcess(PUBLIC, (calls) => {
        for (let call = 0; call < calls; call += 1)
          PinnedBuffer.allocate(PINNED_BYTE_LENGTH).close();
      }),
      inProcess(`${PUBLIC}, pin() touched`, (calls) => {
        for (let call = 0; call < calls; call += 1) pin(touched).close();
      }),
    ],
    async verify() {
      using buffer = DeviceBuffer.allocate(PINNED_BYTE_LENGTH);
      using pinned = PinnedBuffer.allocate(PINNED_BYTE_LENGTH);
      using _ = pin(touched);
      for (const host of [new Uint8Array(pinned.buffer), touched])
        await requireCopied('toDevice', buffer, host, 'pinned memory', () => buffer.copyFrom(host));
    },
    close() {},
  };
}

function openDevice(): OpenCase {
  const context = Context.primary();
  return {
    contestants: [
      inProcess(PUBLIC, (calls) => {
        for (let call = 0; call < calls; call += 1) DeviceBuffer.allocate(MIB, { context }).close();
      }),
      inProcess(RAW, (calls) =>
        context.run(() => {
          let status = 0;
          for (let call = 0; call < calls; call += 1) {
            status |= cu.cuMemAlloc_v2(out, MIB);
            status |= cu.cuMemFree_v2(readHandle(out));
          }
          requireSuccess(status === 0, 'cuMemAlloc_v2');
        }),
      ),
    ],
    async verify() {
      using buffer = DeviceBuffer.allocate(MIB, { context });
      await requireMemory(buffer, PUBLIC);
    },
    close() {},
  };
}

/** What is written to memory is what is read of it. */
async function requireMemory(buffer: DeviceBuffer, what: string): Promise<void> {
  const host = new Uint8Array(buffer.byteLength);
  await requireCopied('toDevice', buffer, host, what, () => buffer.copyFrom(host));
}
