import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { inspect } from 'node:util';
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { cu, recordCalls } from '../../ffi/driver.ts';
import type { CUgraph } from '../../ffi/types.ts';
import {
  Context,
  CudaError,
  CudaEvent,
  Device,
  DeviceBuffer,
  driverVersion,
  Graph,
  ManagedMemory,
  MemoryPool,
  PinnedBuffer,
  pin,
  Stream,
  toDevice,
  toDeviceSync,
  VirtualMemory,
} from '../../src/index.ts';
import { loadKernels } from '../support/kernels.ts';
import { Latch } from '../support/latch.ts';
import { stateBesideCode } from '../support/process-state.ts';

const SAXPY = ['float32', 'float32*', 'float32*', 'uint32'] as const;
const isOld = driverVersion().major < 12 && 'the driver cannot update graphs';
const shape = { grid: 1, block: 32 };

describe('Graph', () => {
  test('captured kernels, fills and copies run at each launch, and not before', async () => {
    using module = loadKernels();
    const saxpy = module.kernel('saxpy', SAXPY);
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    using x = await toDevice(new Float32Array([1, 2]));
    using y = await toDevice(new Float32Array([10, 20]));
    using z = await toDevice(new Float32Array(2));
    using graph = Graph.capture(stream, () => {
      saxpy.launch({ ...shape, stream }, 1, x, y, 2);
      y.copyTo(z, { stream });
      x.slice({ stop: 1 }).fill(5, { stream });
    });
    assert.equal(stream.done, true);
    assert.deepEqual(await y.copyToHost(), new Float32Array([10, 20]));
    graph.upload({ stream });
    graph.launch({ stream });
    graph.launch({ stream });
    await stream.synchronize();
    assert.deepEqual(await z.copyToHost(), new Float32Array([16, 24]));
    graph.launch();
    await Context.primary().synchronize();
    graph.launch({ stream: Stream.fromHandle(other.handle) });
    await other.synchronize();
    assert.deepEqual(await y.copyToHost(), new Float32Array([26, 28]));
  });

  test('what the driver refuses in a captured stream throws before, and the capture goes on', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(64);
    const prefetches = Device.get().attribute('concurrentManagedAccess') !== 0;
    const memory = prefetches ? ManagedMemory.create() : undefined;
    using managed = memory?.allocate(4096);
    const far = Device.count > 1 ? DeviceBuffer.allocate(64, { device: 1 }) : undefined;
    using graph = Graph.capture(stream, () => buffer.fill(1, { stream }));
    const refusedIn = (captured: Stream): (() => unknown)[] => [
      () => graph.launch({ stream: captured }),
      () => graph.upload({ stream: captured }),
      () => captured.nonBlocking,
      ...(memory && managed
        ? [() => memory.prefetch(managed, Device.get(), { stream: captured })]
        : []),
      ...(far ? [() => buffer.copyTo(far, { stream: captured })] : []),
    ];
    const code = 'invalid-state';
    const message = /is not possible (in a stream whose work|while a graph) is captured/;
    using second = Graph.capture(stream, () => {
      for (const refused of refusedIn(stream))
        assert.throws(refused, { code, message }, `${refused}`);
      buffer.fill(7, { stream });
    });
    // Captured by another library.
    using borrowed = Stream.fromHandle(stream.handle);
    assert.equal(cu.cuStreamBeginCapture_v2(stream.handle, 0), 0);
    for (const refused of refusedIn(borrowed))
      assert.throws(refused, { code, message }, `${refused}`);
    assert.equal(cu.cuStreamEndCapture(stream.handle, OUT0), 0);
    assert.equal(cu.cuGraphDestroy(readHandle<CUgraph>(OUT0)), 0);
    second.launch({ stream });
    await stream.synchronize();
    assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([7]));
    far?.close();
  });

  test('a launch is one call of the driver, with or without a current context', async () => {
    using module = loadKernels();
    const nothing = module.kernel('nothing', []);
    using stream = Stream.create({ nonBlocking: true });
    using graph = Graph.capture(stream, () => nothing.launch({ ...shape, stream }));
    const recorder = recordCalls();
    graph.launch({ stream });
    recorder.stop();
    assert.deepEqual(
      recorder.calls.map(({ name }) => name),
      ['cuGraphLaunch'],
    );
    Context.primary().run(() => graph.launch({ stream }));
    await stream.synchronize();
  });

  test('a stream that waits for the captured one is captured with it, until it is joined', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using side = Stream.create({ nonBlocking: true });
    using fork = CudaEvent.create({ timing: false });
    using join = CudaEvent.create({ timing: false });
    using buffer = DeviceBuffer.allocate(8);
    buffer.fill(0);
    const work = (): void => {
      fork.record(stream);
      side.wait(fork);
      buffer.subarray(0, 4).fill(1, { stream: side });
      join.record(side);
      buffer.subarray(4).fill(2, { stream });
      stream.wait(join);
    };
    using graph = Graph.capture(stream, work);
    assert.deepEqual([stream.done, side.done], [true, true]);
    graph.launch({ stream });
    await stream.synchronize();
    assert.deepEqual(await buffer.copyToHost(), new Uint8Array([1, 1, 1, 1, 2, 2, 2, 2]));
    assert.throws(
      () =>
        Graph.capture(stream, () => {
          fork.record(stream);
          side.wait(fork);
          buffer.fill(1, { stream: side });
        }),
      { code: 'CUDA_ERROR_STREAM_CAPTURE_UNJOINED' },
    );
    assert.deepEqual([stream.done, side.done], [true, true]);
  });

  test('a graph takes other arguments, and refuses other work', {
    skip: isOld,
  }, async () => {
    using module = loadKernels();
    const saxpy = module.kernel('saxpy', SAXPY);
    using stream = Stream.create({ nonBlocking: true });
    using x = await toDevice(new Float32Array([1]));
    using y = await toDevice(new Float32Array([0]));
    using graph = Graph.capture(stream, () => saxpy.launch({ ...shape, stream }, 1, x, y, 1));
    graph.launch({ stream });
    graph.update(stream, () => saxpy.launch({ ...shape, stream }, 10, x, y, 1));
    graph.launch({ stream });
    assert.throws(() => graph.update(stream, () => y.fill(3, { stream })), {
      code: 'CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE',
    });
    graph.launch({ stream });
    await stream.synchronize();
    assert.equal(await y.get(0), 21);
  });

  test('one launch of a graph takes other arguments, and what is queued goes on as it was', {
    skip: isOld,
  }, async () => {
    using module = loadKernels();
    const saxpy = module.kernel('saxpy', SAXPY);
    const narrow = module.kernel('narrow', ['pointer']);
    using stream = Stream.create({ nonBlocking: true });
    using x = await toDevice(new Float32Array([1]));
    using y = await toDevice(new Float32Array([0]));
    using z = await toDevice(new Float32Array([0]));
    const work = (a: number) => () => {
      saxpy.launch({ ...shape, stream }, a, x, y, 1);
      saxpy.launch({ ...shape, stream, sharedBytes: 16 }, a, x, z, 1);
    };
    using graph = Graph.capture(stream, work(1));
    const [first, second] = [graph.kernelNode(saxpy, 0), graph.kernelNode(saxpy, 1)];
    assert.deepEqual(graph.kernelNodes, [first, second]);
    assert.deepEqual([second.grid, second.block, second.sharedBytes], [[1, 1, 1], [32, 1, 1], 16]);
    {
      using latch = new Latch();
      latch.hold(stream);
      graph.launch({ stream });
      graph.setArguments(first, 10, x, y, 1);
      graph.setArguments(second, 100, x.address, z, 1);
      graph.launch({ stream });
      latch.open();
      await stream.synchronize();
    }
    assert.deepEqual([await y.get(0), await z.get(0)], [11, 101]);
    // What is refused changes nothing.
    const set = graph.setArguments.bind(graph) as (...args: unknown[]) => void;
    using doubles = await toDevice(new Float64Array(1));
    assert.throws(() => set(first, 1, x, y), /kernel saxpy takes 4 arguments .*, not 3/);
    assert.throws(() => set(first, 1, doubles, y, 1), /points to float32: its items are float64/);
    assert.throws(() => set(first, 1, x, y, -1), RangeError);
    assert.throws(() => set(saxpy, 1, x, y, 1), /node must be a KernelNode, not a Kernel/);
    assert.throws(() => graph.kernelNode(saxpy), /has 2 launches of kernel saxpy: pass the index/);
    assert.throws(
      () => graph.kernelNode(saxpy, 2),
      /at, of the 2 launches of kernel saxpy, must be/,
    );
    assert.throws(() => graph.kernelNode(narrow), /has no launch of kernel narrow/);
    {
      using another = Graph.capture(stream, work(1));
      assert.throws(() => set(another.kernelNodes[0], 1, x, y, 1), /is not a launch of this graph/);
    }
    graph.launch({ stream });
    // An update sets the arguments of all, and later ones of each can be set again.
    graph.update(stream, work(1000));
    assert.throws(() => graph.setArguments(first, 1, x, y, 1), /an update replaced it/);
    graph.launch({ stream });
    graph.setArguments(graph.kernelNode(saxpy, 1), 5000, x, z, 1);
    graph.launch({ stream });
    await stream.synchronize();
    assert.deepEqual([await y.get(0), await z.get(0)], [2021, 6201]);
    module.close();
    assert.throws(() => graph.setArguments(graph.kernelNode(saxpy, 0), 1, x, y, 1), {
      name: 'ClosedError',
    });
  });

  test('memory that a pool gives out in a capture is the graph’s: there at each launch', async () => {
    using module = loadKernels();
    const saxpy = module.kernel('saxpy', SAXPY);
    const pool = MemoryPool.create({ maxSize: 1 << 20 });
    using stream = Stream.create({ nonBlocking: true });
    using side = Stream.create({ nonBlocking: true });
    using fork = CudaEvent.create({ timing: false });
    using join = CudaEvent.create({ timing: false });
    using result = await toDevice(new Float32Array([1, 2]));
    using copied = DeviceBuffer.allocate(64);
    const buffers: DeviceBuffer[] = [];
    let address = 0;
    using graph = Graph.capture(stream, () => {
      // Left open: freed at the end of the capture.
      const scratch = pool.allocate(8, { stream });
      address = scratch.address;
      scratch.fill(0, { stream });
      saxpy.launch({ ...shape, stream }, 3, result, { address }, 2);
      fork.record(stream);
      side.wait(fork);
      const forked = DeviceBuffer.allocate(4096, { memory: pool, stream: side });
      forked.fill(7, { stream: side });
      join.record(side);
      stream.wait(join);
      {
        using freed = pool.allocate(1 << 16, { stream });
        freed.fill(9, { stream });
        forked.subarray(0, 64).copyTo(freed, { stream });
        freed.subarray(0, 64).copyTo(copied, { stream });
        buffers.push(freed);
      }
      forked.close({ stream });
      scratch.copyTo(result.buffer, { stream });
      buffers.push(scratch, forked);
    });
    assert.deepEqual(
      buffers.map(({ closed }) => closed),
      [true, true, true],
    );
    assert.throws(() => buffers[1]?.address, {
      name: 'ClosedError',
      message: /memory of a graph, whose capture has ended/,
    });
    assert.equal(pool.used, 0);
    pool.close();
    for (let turn = 0; turn < 3; turn += 1) graph.launch({ stream });
    await stream.synchronize();
    assert.deepEqual(await result.copyToHost(), new Float32Array([27, 54]));
    assert.deepEqual(new Set(await copied.copyToHost()), new Set([7]));
    assert.throws(() => graph.update(stream, () => {}), {
      name: 'CuffiError',
      message: /that allocates memory cannot be updated/,
    });
    if (isOld) return;
    // The address is the same at each launch, and so can be named again.
    graph.setArguments(graph.kernelNode(saxpy), 2, result, address, 2);
    graph.launch({ stream });
    await stream.synchronize();
    assert.deepEqual(await result.copyToHost(), new Float32Array([54, 108]));
  });

  test('memory of a graph is refused where it cannot be, and a capture that fails leaves none', async () => {
    Graph.trimMemory();
    const before = stateBesideCode();
    {
      using stream = Stream.create({ nonBlocking: true });
      using other = Stream.create({ nonBlocking: true });
      using pool = MemoryPool.create({ maxSize: 1 << 20 });
      using buffer = DeviceBuffer.allocate(4096);
      using graph = Graph.capture(stream, () => {
        const scratch = pool.allocate(4096, { stream });
        assert.throws(() => scratch.close({ stream: other }), /needs a captured stream/);
        assert.equal(scratch.closed, false);
        assert.throws(() => pool.allocate((1 << 20) + 1, { stream }), RangeError);
        scratch.fill(5, { stream });
        scratch.copyTo(buffer, { stream });
        pool.close();
      });
      graph.launch({ stream });
      await stream.synchronize();
      assert.equal(buffer.copyToHostSync()[4095], 5);
      using another = MemoryPool.create({ maxSize: 1 << 20 });
      let scratch: DeviceBuffer | undefined;
      const failing = (): void => {
        scratch = another.allocate(4096, { stream });
        throw new Error('of the caller');
      };
      assert.throws(() => Graph.capture(stream, failing), /of the caller/);
      assert.equal(scratch?.closed, true);
      const growing = (): void => another.allocate(4096, { stream }).close();
      using plain = Graph.capture(stream, () => buffer.fill(1, { stream }));
      assert.throws(() => plain.update(stream, growing), /that allocates memory cannot be updated/);
      if (MemoryPool.supported(0, { shareable: true })) {
        using shareable = MemoryPool.create({ shareable: true, maxSize: 1 << 20 });
        const share = (): unknown => shareable.allocate(16, { stream });
        assert.throws(() => Graph.capture(stream, share), { name: 'NotSupportedError' });
      }
      await stream.synchronize();
    }
    await Context.primary().flush();
    Graph.trimMemory();
    assert.deepEqual(stateBesideCode(), before);
  });

  test('what would break a capture is refused with a sentence, and the capture goes on', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using event = CudaEvent.create();
    using buffer = DeviceBuffer.allocate(4096);
    using pool = MemoryPool.create({ maxSize: 1 << 20 });
    using other = Stream.create({ nonBlocking: true });
    const pooled = pool.allocate(16, { stream });
    const closed = DeviceBuffer.allocate(16);
    using few = toDeviceSync(new Float32Array(4));
    using earlier = Graph.capture(stream, () => buffer.fill(7, { stream }));
    const context = Context.primary();
    const refused = { name: 'CuffiError', message: /while a graph is captured/ };
    const bytes = new Uint8Array(4096);
    const waits: Promise<unknown>[] = [];
    using graph = Graph.capture(stream, () => {
      buffer.fill(7, { stream });
      for (const act of [
        () => stream.done,
        () => stream.synchronizeSync(),
        () => event.done,
        () => event.synchronizeSync(),
        () => event.record(),
        () => context.synchronizeSync(),
        () => buffer.fill(1),
        () => buffer.fill(1, { stream: Stream.legacyDefault() }),
        () => buffer.copyToHostSync(),
        () => few.copyToHostSync(),
        () => few.getSync(0),
        () => few.setSync([0], 1),
        () => buffer.copyFromSync(bytes, { stream }),
        () => DeviceBuffer.allocate(16),
        () => pool.allocate(16),
        () => pool.allocate(16, { stream: other }),
        () => pool.allocate(16, { stream: Stream.legacyDefault() }),
        () => Graph.capture(stream, () => {}),
        () => earlier.upload({ stream }),
      ])
        assert.throws(act, refused, String(act));
      waits.push(stream.synchronize(), context.synchronize(), buffer.copyToHost());
      assert.match(inspect(few), /not read: a graph is captured/);
      // What is closed is given back after the capture.
      closed.close();
      pooled.close();
    });
    for (const wait of waits) await assert.rejects(wait, refused);
    graph.launch({ stream });
    await stream.synchronize();
    assert.equal((await buffer.copyToHost())[4095], 7);
    await context.flush();
    assert.equal(context.pendingReleases.count, 0);
  });

  for (const nonBlocking of [true, false])
    test(`the first copies and fills with gaps in a context are captured, nonBlocking ${nonBlocking}`, async () => {
      // The built-in kernels are loaded once in a context.
      await Context.primary().reset();
      using stream = Stream.create({ nonBlocking });
      const values = Float32Array.from({ length: 64 * 64 }, (_, i) => i);
      using a = toDeviceSync(values, { shape: [64, 64] });
      using b = toDeviceSync(new Float32Array(64 * 64), { shape: [64, 64] });
      const work = (): void => {
        a.T.copyTo(b, { stream });
        b.slice({ step: 2 }, { step: 3 }).fill(-1, { stream });
      };
      using graph = Graph.capture(stream, work);
      assert.deepEqual(await b.copyToHost(), new Float32Array(64 * 64), 'nothing has run');
      graph.launch({ stream });
      await stream.synchronize();
      const expected = values.map((_, i) => {
        const [row, column] = [Math.floor(i / 64), i % 64];
        return row % 2 === 0 && column % 3 === 0 ? -1 : column * 64 + row;
      });
      assert.deepEqual(await b.copyToHost(), expected);
      // The same work is captured the same way, whatever has run since.
      a.T.copyTo(b, { stream });
      if (!isOld) graph.update(stream, work);
      b.fill(0, { stream });
      graph.launch({ stream });
      await stream.synchronize();
      assert.deepEqual(await b.copyToHost(), expected);
    });

  test('a first copy with gaps is captured beside work that holds up the context', async () => {
    await Context.primary().reset();
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    using a = toDeviceSync(
      Float32Array.from({ length: 300 }, (_, i) => i),
      { shape: [20, 15] },
    );
    using b = toDeviceSync(new Float32Array(300), { shape: [15, 20] });
    using latch = new Latch();
    latch.hold(other);
    using graph = Graph.capture(stream, () => a.T.copyTo(b, { stream }));
    latch.open();
    await other.synchronize();
    graph.launch({ stream });
    await stream.synchronize();
    assert.deepEqual(await b.T.copyToHost(), await a.copyToHost());
  });

  for (const [mode, number] of Object.entries({ global: 0, 'thread-local': 1, relaxed: 2 }))
    test(`a first copy with gaps goes into the ${mode} capture of another library`, async () => {
      await Context.primary().reset();
      using own = Stream.create({ nonBlocking: true });
      using blocking = Stream.create();
      for (const captured of [own, blocking]) {
        using borrowed = Stream.fromHandle(captured.handle);
        using pool = MemoryPool.create({ maxSize: 1 << 20 });
        using a = toDeviceSync(
          Float32Array.from({ length: 300 }, (_, i) => i),
          { shape: [20, 15] },
        );
        using b = toDeviceSync(new Float32Array(300), { shape: [15, 20] });
        assert.equal(cu.cuStreamBeginCapture_v2(captured.handle, number), 0);
        a.T.copyTo(b, { stream: borrowed });
        assert.throws(() => pool.allocate(16, { stream: borrowed }), {
          code: 'invalid-state',
          message: /another library captures this stream/,
        });
        assert.equal(cu.cuStreamEndCapture(captured.handle, OUT0), 0);
        const graph = readHandle<CUgraph>(OUT0);
        assert.deepEqual(b.copyToHostSync(), new Float32Array(300), 'nothing has run');
        assert.equal(cu.cuGraphDestroy(graph), 0);
      }
    });

  test('what is made once is made in a capture, and leaves it as it was', async () => {
    await Context.primary().reset();
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(16);
    const host = new Uint8Array(1 << 20);
    const made: Disposable[] = [];
    const makers: Readonly<Record<string, () => Disposable>> = {
      'a pool': () => MemoryPool.create({ maxSize: 1 << 20 }),
      'page-locked memory': () => pin(host.subarray(1 << 19)),
      'a module': () => loadKernels(),
      'a pinned buffer': () => PinnedBuffer.allocate(4096),
      'virtual memory': () => VirtualMemory.reserve(1 << 20),
      'a stream': () => Stream.create(),
      'an event': () => CudaEvent.create(),
    };
    for (const [what, make] of Object.entries(makers)) {
      using graph = Graph.capture(stream, () => {
        buffer.fill(1, { stream });
        made.push(make());
        buffer.fill(2, { stream });
      });
      buffer.fill(0, { stream });
      graph.launch({ stream });
      await stream.synchronize();
      assert.deepEqual([...new Set(await buffer.copyToHost())], [2], what);
    }
    for (const one of made) one[Symbol.dispose]();
    await Context.primary().flush();
  });

  test('a capture that fails leaves nothing behind, and the stream as it was', async () => {
    const before = stateBesideCode();
    {
      using stream = Stream.create({ nonBlocking: true });
      using buffer = DeviceBuffer.allocate(16);
      const failing = (): void => {
        buffer.fill(9, { stream });
        throw new Error('of the caller');
      };
      buffer.fill(1, { stream });
      assert.throws(() => Graph.capture(stream, failing), /of the caller/);
      assert.throws(
        () => Graph.capture(stream, (async () => {}) as () => void),
        /takes a synchronous function/,
      );
      assert.throws(() => Graph.capture(Stream.legacyDefault(), () => {}), /default stream/);
      using outside = CudaEvent.create();
      using other = Stream.create({ nonBlocking: true });
      outside.record(other);
      // What the driver alone can tell is its error, and told even where that is caught.
      const waiting = (): void => stream.wait(outside);
      assert.throws(() => Graph.capture(stream, waiting), {
        code: 'CUDA_ERROR_STREAM_CAPTURE_ISOLATION',
      });
      assert.throws(() => Graph.capture(stream, () => assert.throws(waiting, CudaError)), {
        code: 'CUDA_ERROR_STREAM_CAPTURE_INVALIDATED',
      });
      await stream.synchronize();
      assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([1]));
      const graph = Graph.capture(stream, () => buffer.fill(2, { stream }));
      graph.launch({ stream });
      graph.close();
      graph.close();
      assert.throws(() => graph.launch({ stream }), { name: 'ClosedError' });
      await stream.synchronize();
      assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([2]));
    }
    await Context.primary().flush();
    assert.deepEqual(stateBesideCode(), before);
  });
});
