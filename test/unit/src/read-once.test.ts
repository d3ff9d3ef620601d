/** What is given to public calls, and answers differently the second time: each is read once. */
import assert from 'node:assert/strict';
import { before, describe, test } from 'node:test';
import { arena } from '../../../ffi/arena.ts';
import { selectDriver } from '../../../ffi/driver.ts';
import { emulatedKernels } from '../../../ffi/emulated-kernels.ts';
import { createEmulatedDriver } from '../../../ffi/emulator/index.ts';
import { closeFd, createMemfd, isOpenFd } from '../../../ffi/linux/libc.ts';
import * as cuda from '../../../src/index.ts';
import * as ipc from '../../../src/ipc/index.ts';
import { loadKernels } from '../../support/kernels.ts';
import { peerPair } from './ipc/peer/support.ts';

before(() => selectDriver(createEmulatedDriver({ arena, env: {}, kernels: emulatedKernels })));

/** The same properties, each of which may be read once. */
function once<T extends object>(given: T): T {
  const own = Array.isArray(given) ? [] : {};
  for (const [name, value] of Object.entries(given)) {
    let isRead = false;
    Object.defineProperty(own, name, {
      enumerable: true,
      get() {
        assert.equal(isRead, false, `${name} is read a second time`);
        isRead = true;
        return value;
      },
    });
  }
  return own as T;
}

const closeAll = (...made: readonly { close(): void }[]): void => {
  for (const each of made) each.close();
};

const calls: Readonly<Record<string, (context: cuda.Context) => unknown>> = {
  'Stream.create': (context) =>
    closeAll(cuda.Stream.create(once({ context, nonBlocking: true, priority: 0 }))),
  'CudaEvent.create': (context) =>
    closeAll(cuda.CudaEvent.create(once({ context, timing: false, interprocess: true }))),
  'DeviceBuffer.allocate': (context) => closeAll(cuda.DeviceBuffer.allocate(64, once({ context }))),
  'DeviceBuffer.fromPointer': (context) =>
    closeAll(cuda.DeviceBuffer.fromPointer(4096, 64, once({ context, owner: {} }))),
  'MemoryPool.create': (context) => {
    const reuse = once({ allowOpportunistic: true });
    const options = once({
      context,
      maxSize: 1 << 20,
      releaseThreshold: 0,
      shareable: true,
      reuse,
    });
    const pool = cuda.MemoryPool.create(options);
    pool.reuse = once({ followEventDependencies: true });
    pool.close(once({ buffers: true }));
  },
  'VirtualMemory.create': (context) =>
    closeAll(cuda.VirtualMemory.reserve(1 << 21, once({ context, shareable: true }))),
  'PinnedBuffer.allocate': (context) =>
    closeAll(cuda.PinnedBuffer.allocate(64, once({ context, portable: true, mapped: true }))),
  'pin of memory': () => closeAll(cuda.pin(new Uint8Array(4096), once({ portable: true }))),
  'MappedMemory.create': (context) => void cuda.MappedMemory.create(once({ context })),
  'ManagedMemory.create': (context) =>
    void cuda.ManagedMemory.create(once({ context, attach: 'global' as const })),
  allocatePitched: (context) =>
    closeAll(cuda.allocatePitched(10, 3, once({ context, elementByteLength: 8 as const })).buffer),
  'copies and fills of buffers': async (context) => {
    const { signal } = new AbortController();
    const stream = cuda.Stream.create({ context, nonBlocking: true });
    const [a, b] = [cuda.DeviceBuffer.allocate(64), cuda.DeviceBuffer.allocate(64)];
    a.fill(1, once({ stream, elementByteLength: 4 as const }));
    a.copyTo(b, once({ stream }));
    await a.copyFrom(new Uint8Array(64), once({ stream, signal }));
    a.copyFromSync(new Uint8Array(64), once({ stream }));
    await a.copyToHost(undefined, once({ stream, signal }));
    a.copyToHostSync(undefined, once({ stream }));
    const extent = { width: 4, height: 2 };
    const place = { byteOffset: 4, rowPitch: 8, slicePitch: 16 };
    const target = (): cuda.PitchedMemory => once({ memory: a, ...place });
    const source = (): cuda.PitchedMemory => once({ memory: b, ...place });
    await cuda.copyPitched(target(), source(), once(extent), once({ stream, signal }));
    cuda.copyPitchedSync(target(), source(), once(extent), once({ stream }));
    cuda.queuePitchedCopy(target(), source(), once(extent), once({ stream }));
    cuda.fillPitched(target(), 1, once(extent), once({ stream, elementByteLength: 1 as const }));
    await stream.synchronize(once({ signal }));
    await context.flush(once({ signal }));
    a.close(once({ stream, leases: 'refuse' as const }));
    closeAll(b, stream);
  },
  'pointers of memory managers': (context) => {
    const init = { context, pointer: 4096, byteLength: 64, owner: {}, finalizer: () => {} };
    const pointer = new cuda.MemoryPointer(once(init));
    assert.deepEqual([pointer.pointer, pointer.byteLength], [4096, 64]);
    const parts = { base: pointer, handle: new Uint8Array(64), byteLength: 8, offset: 8 };
    new cuda.IpcHandle(once(parts));
    closeAll(pointer.view(8, 16), pointer);
    new cuda.AutoFreePointer(once(init)).free();
    new cuda.PinnedPointer(once(init)).close();
    const buffer = cuda.PinnedBuffer.allocate(64, { mapped: true });
    const { hostAddress: at } = buffer as unknown as { readonly hostAddress: number };
    if (at) new cuda.MappedPointer(once({ ...init, pointer: at })).free();
    buffer.close();
  },
  'making arrays': async (context) => {
    const stream = cuda.Stream.create({ context, nonBlocking: true });
    const { signal } = new AbortController();
    const { float32 } = cuda;
    const made = [
      cuda.deviceArray(once([2, 3]), float32, once({ context, strides: once([12, 4]), stream })),
      cuda.mappedArray(once([2, 3]), float32, once({ context, order: 'F' as const })),
      cuda.managedArray(once([2, 3]), float32, once({ context, order: 'C' as const })),
      cuda.pinnedArray(once([2, 3]), float32, once({ context, order: 'F' as const })),
      cuda.deviceArrayLike(once({ shape: once([2, 3]), dtype: float32, strides: once([4, 8]) })),
      cuda.fromPointer(4096, once({ shape: once([2]), dtype: float32, strides: once([8]) })),
      await cuda.toDevice(
        once([once([1, 2]), once([3, 4])]),
        once({ dtype: float32, context, order: 'F' as const, stream, signal }),
      ),
      cuda.toDeviceSync(
        once([once({ re: 1, im: 2 })]),
        once({ dtype: cuda.complex64, copy: true, stream }),
      ),
    ];
    const [array] = made as [cuda.DeviceArray<typeof float32>];
    await array.copyFrom(once([once([1, 2, 3]), once([4, 5, 6])]), once({ stream, signal }));
    await array.set(
      once([once({ start: 0, stop: 2, step: 1 })]),
      once([7, 8, 9]),
      once({ stream, signal, order: 'C' as const }),
    );
    array.setSync(once([0]), 5, once({ stream }));
    await array.copyToHost(undefined, once({ stream, signal, order: 'F' as const }));
    array.copyToHostSync(undefined, once({ stream, order: 'F' as const }));
    array.fill(3, once({ stream }));
    array.reshape(once([3, 2]), once({ order: 'C' as const }));
    array.transpose(once([1, 0]));
    array.split(once({ size: 1 }));
    array.broadcastTo(once([4, 2, 3]));
    array.copy(once({ order: 'F' as const, stream })).close();
    cuda.toNested(new Float32Array(6), once([2, 3]), once({ dtype: float32, order: 'F' as const }));
    cuda.fromBuffer(
      array.buffer,
      once([2]),
      float32,
      once({ byteOffset: 4, strides: once([8]), readOnly: true, stream }),
    );
    closeAll(...made, stream);
  },
  'arrays of other libraries': (context) => {
    const array = cuda.deviceArray([2, 3], cuda.float32);
    const given = cuda.cudaArrayInterface(array, once({ stream: null }));
    const { shape, data } = given;
    const strides = once([12, 4]);
    const stream = cuda.Stream.create({ context, nonBlocking: true });
    const description = once({ ...given, shape: once(shape), data: once(data), strides });
    const options = once({ owner: array, stream, context });
    assert.deepEqual(cuda.fromCudaArrayInterface(description, options).shape, [2, 3]);
    const tensor = cuda.dlpack(array, once({ stream }));
    const { version, flags, device, dtype } = tensor;
    const parts = {
      ...{ version: once(version), flags: once(flags), device: once(device), dtype: once(dtype) },
      ...{ shape: once(tensor.shape), strides: once(tensor.strides) },
    };
    const again = cuda.fromDLPack(once({ ...tensor, ...parts }), once({ owner: array, stream }));
    assert.deepEqual(again.shape, [2, 3]);
    closeAll(stream, array);
  },
  kernels: (context) => {
    const module = loadKernels(
      once({ context, jit: once({ verbose: true }), loading: 'lazy' as const }),
    );
    const params = once(['pointer', once({ bytes: 8 })] as const);
    assert.throws(() => module.kernel('narrow', params as never), TypeError);
    const narrow = module.kernel('narrow', once(['pointer'] as const));
    const stream = cuda.Stream.create({ context, nonBlocking: true });
    const { address } = cuda.DeviceBuffer.allocate(64);
    const dtype = once({ name: 'uint32' as const });
    const given = { address, context, buffer: undefined, dtype };
    const shape = { grid: once([1, 1, 1] as const), block: once([4, 1] as const) };
    narrow.launch(once({ ...shape, sharedBytes: 0, stream, cooperative: false }), once(given));
    narrow.launch({ grid: 1, block: 1, stream }, address);
    const graph = cuda.Graph.capture(stream, () => {
      narrow.launch({ grid: 1, block: 1, stream }, address);
    });
    graph.setArguments(
      graph.kernelNode(narrow),
      once({ ...given, dtype: once({ name: 'uint32' as const }) }),
    );
    graph.launch(once({ stream }));
    graph.upload(once({ stream }));
    // Only a GPU answers; what is given has been read by then.
    const unknown = { code: 'CUDA_ERROR_NOT_SUPPORTED' };
    const shape2 = once([4, 2] as const);
    assert.throws(() => narrow.maxActiveBlocks(shape2, once({ sharedBytes: 0 })), unknown);
    const limits = once({ sharedBytes: 0, maxBlockSize: 64 });
    assert.throws(() => narrow.suggestedBlockSize(limits), unknown);
    closeAll(graph, stream, module);
  },
  connections: async (context) => {
    using pair = peerPair();
    const stream = cuda.Stream.create({ context, nonBlocking: true });
    const { signal } = new AbortController();
    const wait = (): ipc.TransferOptions => once({ signal, timeoutMs: 60_000, stream });
    const list = once([1, once({ y: 2 })]);
    await pair.a.send(once({ list, text: 'x' }), wait());
    assert.deepEqual(await pair.b.receive(wait()), { list: [1, { y: 2 }], text: 'x' });
    await ipc.leases.drain(once({ signal, timeoutMs: 60_000 }));
    const name = `@cuffi-once-${process.pid}`;
    using listener = ipc.listen(name, once({ allowOtherUsers: false, orphanGraceMs: 100 }));
    const accepting = listener.accept(once({ signal, timeoutMs: 60_000 }));
    const timeoutMs = 60_000;
    using client = await ipc.connect(name, once({ signal, timeoutMs, busyPollUs: 0 }));
    using server = await accepting;
    assert.equal(client.pid, server.pid);
    stream.close();
  },
};

describe('the arguments of public calls', () => {
  for (const [call, use] of Object.entries(calls))
    test(`${call} reads its arguments once`, async () => {
      await use(cuda.Context.primary());
    });

  test('file descriptors from a getter are read once, and no other number is closed', () => {
    const [mine, another] = [createMemfd('mine', 1), createMemfd('of somebody else', 1)];
    let reads = 0;
    const options = {
      get fds() {
        reads += 1;
        return reads === 1 ? [mine] : [another];
      },
    };
    assert.throws(() => ipc.openIpc({}, options), { name: 'IpcError' });
    assert.deepEqual([isOpenFd(mine), isOpenFd(another)], [false, true]);
    closeFd(another);
  });

  test('a handle whose options open or close it is opened once, or not at all', () => {
    const array = cuda.deviceArray([4], cuda.float32);
    const sameProcess = 'alias' as const;
    const handle = ipc.getIpcHandle(array);
    let first: { readonly closed: boolean } | undefined;
    const opening = {
      get sameProcess() {
        first = handle.open({ sameProcess: 'alias' });
        return sameProcess;
      },
    };
    assert.throws(() => handle.open(opening), { name: 'IpcError', message: /already open/ });
    handle.close();
    assert.equal(first?.closed, true);
    const another = ipc.getIpcHandle(array);
    const closing = {
      get sameProcess() {
        another.close();
        return sameProcess;
      },
    };
    assert.throws(() => another.open(closing), { name: 'ClosedError' });
    closeAll(array);
  });

  test("memory of the caller's own resource is checked before use", () => {
    const context = cuda.Context.primary();
    const small = cuda.DeviceBuffer.allocate(8);
    const closed = cuda.DeviceBuffer.allocate(64);
    closed.close();
    for (const [answer, error] of [
      [
        undefined,
        { name: 'TypeError', message: /what memory.allocate returns must be a DeviceBuffer/ },
      ],
      [{ address: 4096, byteLength: 64 }, { name: 'TypeError' }],
      [closed, { name: 'TypeError', message: /an open buffer/ }],
      [small, { name: 'RangeError', message: /at least 64 bytes, not 8/ }],
    ] as const) {
      const memory = { context, allocate: () => answer } as unknown as cuda.MemoryResource;
      assert.throws(() => cuda.DeviceBuffer.allocate(64, { memory }), error);
      assert.throws(() => cuda.deviceArray([16], cuda.float32, { memory }), error);
    }
    small.close();
  });

  test('a typed array that claims another length is copied with its real length', async () => {
    class Long extends Float32Array {
      override get length(): number {
        return 1000;
      }
      override get byteLength(): number {
        return 4000;
      }
    }
    const array = cuda.deviceArray([1000], cuda.float32);
    const refused = { name: 'RangeError', message: /has 2 elements/ };
    await assert.rejects(array.copyFrom(new Long(2)), refused);
    await assert.rejects(array.copyToHost(new Long(2)), refused);
    assert.throws(() => cuda.toNested(new Long(2), [1000]), refused);
    assert.deepEqual(cuda.toDeviceSync(new Long(2)).shape, [2]);
    const buffer = cuda.DeviceBuffer.allocate(64);
    await buffer.copyFrom(new Long(2));
    closeAll(array, buffer);
  });
});
