/** The driver calls that cuffi makes in a capture, and what happens if one fails. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { arena, OUT3, readHandle, writeUint64 } from '../../../../ffi/arena.ts';
import {
  CU_STREAM_CAPTURE_MODE_RELAXED,
  CU_STREAM_CAPTURE_STATUS_ACTIVE,
  CU_STREAM_PER_THREAD,
} from '../../../../ffi/constants.ts';
import { selectDriver } from '../../../../ffi/driver.ts';
import { emulatedKernels } from '../../../../ffi/emulated-kernels.ts';
import { createEmulatedDriver } from '../../../../ffi/emulator/index.ts';
import type { Driver, FunctionName } from '../../../../ffi/functions.ts';
import { CUresult } from '../../../../ffi/results.ts';
import type { CUgraph } from '../../../../ffi/types.ts';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  Graph,
  MemoryPool,
  Stream,
  type StreamOption,
} from '../../../../src/index.ts';
import { recordArguments, recordCallsOf } from '../../../support/arguments.ts';
import { broken, failing, keepingBooks } from '../../../support/faults.ts';
import { loadKernels } from '../../../support/kernels.ts';
import { Latch } from '../../../support/latch.ts';
import { collectGarbage } from '../../../support/process-state.ts';

const emulate = (env: NodeJS.ProcessEnv = {}): Driver =>
  createEmulatedDriver({ arena, env, kernels: emulatedKernels });

/** A driver that records every call, and fails for calls that would invalidate a capture. */
function watch(env: NodeJS.ProcessEnv = {}): {
  readonly calls: string[];
  answers: Partial<Record<FunctionName, CUresult>>;
} {
  const emulated = emulate(env);
  const calls: string[] = [];
  const answers: Partial<Record<FunctionName, CUresult>> = {};
  let capturing = false;
  /** Calls that would invalidate the capture. */
  const breaking = /Query|Synchronize|^cuMem(Alloc|Free)|Destroy_v2|^cuEventRecord/;
  const driver = emulated as unknown as Record<string, (...args: never[]) => CUresult>;
  const watched = Object.fromEntries(
    Object.entries(driver).map(([name, call]) => [
      name,
      (...args: never[]): CUresult => {
        calls.push(name);
        if (name === 'cuStreamBeginCapture_v2') {
          assert.equal(args[1], CU_STREAM_CAPTURE_MODE_RELAXED);
          capturing = true;
        }
        if (name === 'cuStreamEndCapture') capturing = false;
        if (capturing && breaking.test(name)) assert.fail(`${name} in a capture`);
        return answers[name as FunctionName] ?? call(...args);
      },
    ]),
  );
  selectDriver(watched as unknown as Driver);
  return { calls, answers };
}

describe('Graph', () => {
  test('a capture makes no driver calls of its own, and releases run afterwards', async () => {
    watch();
    const context = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    using event = CudaEvent.create();
    using buffer = DeviceBuffer.allocate(64);
    using pool = MemoryPool.create({ maxSize: 1 << 20 });
    const pooled = pool.allocate(16, { stream });
    const closed = DeviceBuffer.allocate(64);
    const refused = { name: 'CuffiError', message: /while a graph is captured/ };
    const waits: Promise<unknown>[] = [];
    const graph = Graph.capture(stream, () => {
      for (const act of [
        () => stream.done,
        () => stream.synchronizeSync(),
        () => event.done,
        () => event.synchronizeSync(),
        () => event.record(),
        () => CudaEvent.elapsedMs(event, event),
        () => context.synchronizeSync(),
        () => context.resetSync(),
        () => buffer.fill(1),
        () => buffer.fill(1, { stream: Stream.perThreadDefault() }),
        () => buffer.copyToHostSync(),
        () => buffer.copyFromSync(new Uint8Array(64), { stream }),
        () => DeviceBuffer.allocate(16),
        () => pool.allocate(16),
        () => Graph.capture(stream, () => {}),
      ])
        assert.throws(act, refused, String(act));
      waits.push(stream.synchronize(), event.synchronize(), context.synchronize(), context.reset());
      waits.push(buffer.copyToHost());
      pooled.close();
      closed.close();
      buffer.fill(2, { stream });
    });
    graph.close();
    for (const wait of waits) await assert.rejects(wait, refused);
    assert.equal(context.pendingReleases.count, 3);
    await context.flush();
    assert.equal(context.pendingReleases.count, 0);
  });

  test('a failed capture is ended, and its graph destroyed', () => {
    const { calls, answers } = watch();
    using stream = Stream.create({ nonBlocking: true });
    const count = (name: string): number => calls.filter((call) => call === name).length;
    const ended = (open = 0): void => {
      assert.deepEqual(
        [count('cuStreamEndCapture'), count('cuGraphDestroy')],
        [count('cuStreamBeginCapture_v2'), count('cuStreamBeginCapture_v2') - open],
      );
      assert.equal(stream.done, true);
      assert.equal(Context.current(), undefined);
    };
    assert.throws(
      () =>
        Graph.capture(stream, () => {
          throw new Error('of the caller');
        }),
      /of the caller/,
    );
    ended();
    assert.throws(() => Graph.capture(stream, (async () => {}) as () => void), /synchronous/);
    ended();
    answers.cuGraphInstantiateWithFlags = CUresult.CUDA_ERROR_OUT_OF_MEMORY;
    assert.throws(() => Graph.capture(stream, () => {}), { code: 'CUDA_ERROR_OUT_OF_MEMORY' });
    ended();
    delete answers.cuGraphInstantiateWithFlags;
    const graph = Graph.capture(stream, () => {});
    answers.cuGraphExecUpdate_v2 = CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER;
    answers.cuGraphExecUpdate = CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER;
    assert.throws(() => graph.update(stream, () => {}), { name: 'NotSupportedError' });
    ended(1);
    answers.cuGraphLaunch = CUresult.CUDA_ERROR_INVALID_VALUE;
    assert.throws(() => graph.launch({ stream }), { call: 'cuGraphLaunch' });
    assert.throws(() => graph.launch(), { call: 'cuGraphLaunch' });
    assert.equal(Context.current(), undefined);
    graph.close();
    assert.equal(count('cuGraphExecDestroy'), 1);
    ended();
  });

  test('work in a borrowed stream that another library captures is not tracked', () => {
    const { calls, answers } = watch();
    using owner = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(64);
    const borrowed = Stream.fromHandle(owner.handle);
    buffer.fill(1, { stream: borrowed });
    assert.ok(calls.includes('cuEventRecord'));
    calls.length = 0;
    answers.cuStreamIsCapturing = CUresult.CUDA_SUCCESS;
    // The result is written where the driver would write it.
    writeUint64(CU_STREAM_CAPTURE_STATUS_ACTIVE, OUT3);
    buffer.fill(2, { stream: borrowed });
    assert.ok(!calls.includes('cuEventRecord'), calls.join(' '));
  });

  test('memory of another device stays allocated until the launches that use it are done', async () => {
    watch({ CUFFI_EMULATED_DEVICES: '2' });
    using stream = Stream.create({ nonBlocking: true });
    using near = DeviceBuffer.allocate(64);
    const far = DeviceBuffer.allocate(64, { device: 1 });
    Context.primary(0).enablePeerAccess(Context.primary(1));
    using module = loadKernels();
    const saxpy = module.kernel('saxpy', ['float32', 'float32*', 'float32*', 'uint32']);
    using graph = Graph.capture(stream, () =>
      saxpy.launch({ grid: 1, block: 32, stream }, 1, far, near, 16),
    );
    await Promise.all([Context.primary(0).synchronize(), Context.primary(1).synchronize()]);
    assert.equal(Context.primary(1).workTracker.isIdle(), true);
    using latch = new Latch();
    latch.hold(stream);
    graph.launch({ stream });
    far.close();
    assert.equal(Context.primary(1).pendingReleases.count, 1);
    latch.open();
    await Context.primary(1).flush();
    assert.equal(Context.primary(1).pendingReleases.count, 0);
  });

  test('a failed capture leaves no memory of the graph behind', () => {
    for (const [name, nth] of [
      ['cuStreamBeginCapture_v2', 1],
      ['cuStreamGetCaptureInfo_v2', 1],
      ['cuStreamGetCaptureInfo_v2', 3],
      ['cuMemAllocFromPoolAsync', 1],
      ['cuMemAllocFromPoolAsync', 2],
      ['cuMemFreeAsync', 1],
      ['cuMemFreeAsync', 2],
      ['cuStreamEndCapture', 1],
      ['cuGraphInstantiateWithFlags', 1],
    ] as const) {
      const books = keepingBooks(failing(emulate(), name, nth, CUresult.CUDA_ERROR_OUT_OF_MEMORY));
      selectDriver(books.driver);
      using stream = Stream.create({ nonBlocking: true });
      using pool = MemoryPool.create({ maxSize: 1 << 20 });
      const open = [...books.open];
      const buffers: DeviceBuffer[] = [];
      const work = (): void => {
        for (let n = 0; n < 2; n += 1) buffers.push(pool.allocate(4096, { stream }));
      };
      assert.throws(() => Graph.capture(stream, work), { code: 'CUDA_ERROR_OUT_OF_MEMORY' }, name);
      assert.ok(
        buffers.every(({ closed }) => closed),
        `${name} ${nth}`,
      );
      // The emulated driver frees the memory of a failed graph. The built-in kernels stay loaded.
      const left = [...books.open].filter(
        (each) => !/^cuMemAllocFromPool|^cuModuleLoad/.test(each),
      );
      // A capture that was never ended is still active.
      if (name !== 'cuStreamEndCapture') assert.deepEqual(left, open, `${name} ${nth}`);
      assert.equal(Context.current(), undefined);
    }
  });

  test('a graph is launched in the given stream or the default one, and trimMemory uses its device', () => {
    const recorder = recordArguments(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    const context = Context.primary(1);
    using stream = Stream.create({ context, nonBlocking: true });
    using buffer = DeviceBuffer.allocate(64, { context });
    using graph = Graph.capture(stream, () => buffer.fill(1, { stream }));
    const streams = (name: FunctionName, use: (options: StreamOption) => void): unknown[] => {
      recorder.calls.length = 0;
      for (const options of [
        { stream },
        { stream: Stream.fromHandle(stream.handle, { context }) },
        { stream: Stream.perThreadDefault({ context }) },
        {},
      ])
        use(options);
      return recorder.of(name).map(({ args }) => args.at(-1));
    };
    const expected = [stream.handle, stream.handle, CU_STREAM_PER_THREAD, 0];
    assert.deepEqual(
      streams('cuGraphLaunch', (options) => graph.launch(options)),
      expected,
    );
    assert.deepEqual(
      streams('cuGraphUpload', (options) => graph.upload(options)),
      expected,
    );
    for (const place of [{}, { device: 1 }, { context }]) Graph.trimMemory(place);
    const [first, second] = [Context.primary(0), context].map((each) => [
      each.device.handle,
      each.handle,
    ]);
    assert.deepEqual(
      recorder.of('cuDeviceGraphMemTrim').map(({ args, context }) => [...args, context]),
      [first, second, second],
    );
  });

  test('memory of a graph whose close failed is freed at the end of the capture', () => {
    const driver = emulate();
    const faulty = failing(driver, 'cuMemFreeAsync', 1, CUresult.CUDA_ERROR_OUT_OF_MEMORY);
    const told = recordCallsOf(faulty, 'cuMemFreeAsync');
    using stream = Stream.create({ nonBlocking: true });
    using pool = MemoryPool.create({ maxSize: 1 << 20 });
    let address: number | undefined;
    using graph = Graph.capture(stream, () => {
      const buffer = pool.allocate(4096, { stream });
      address = buffer.address;
      assert.throws(() => buffer.close(), { code: 'CUDA_ERROR_OUT_OF_MEMORY' });
    });
    const free = ['cuMemFreeAsync', address, stream.handle];
    assert.deepEqual(told, [free, free]);
    for (let turn = 0; turn < 3; turn += 1) graph.launch({ stream });
    stream.synchronizeSync();
  });

  test('a driver without updates throws, and leaves the graph unchanged', async () => {
    const { CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER: TOO_OLD } = CUresult;
    const lacking = broken(emulate(), 'cuGraphExecKernelNodeSetParams_v2', TOO_OLD);
    selectDriver(broken(lacking, 'cuGraphExecKernelNodeSetParams', TOO_OLD));
    {
      using module = loadKernels();
      using stream = Stream.create({ nonBlocking: true });
      using buffer = DeviceBuffer.allocate(4);
      const narrow = module.kernel('narrow', ['pointer']);
      const launch = (): void => narrow.launch({ grid: 1, block: 7, stream }, buffer);
      using graph = Graph.capture(stream, launch);
      assert.throws(() => graph.setArguments(graph.kernelNode(narrow), null), {
        name: 'NotSupportedError',
      });
      graph.launch({ stream });
      await stream.synchronize();
      assert.equal((await buffer.copyToHost())[0], 7);
    }
    selectDriver(broken(emulate(), 'cuStreamGetCaptureInfo_v2', TOO_OLD));
    using stream = Stream.create({ nonBlocking: true });
    using pool = MemoryPool.create({ maxSize: 1 << 20 });
    const allocate = (): unknown => pool.allocate(16, { stream });
    assert.throws(() => Graph.capture(stream, allocate), { name: 'NotSupportedError' });
    assert.equal(stream.done, true);
  });

  test('memory passed to setArguments stays allocated until the launches are done', async () => {
    watch({ CUFFI_EMULATED_DEVICES: '2' });
    using module = loadKernels();
    const narrow = module.kernel('narrow', ['pointer']);
    using stream = Stream.create({ nonBlocking: true });
    using near = DeviceBuffer.allocate(4);
    Context.primary(0).enablePeerAccess(Context.primary(1));
    const far = DeviceBuffer.allocate(4, { device: 1 });
    using graph = Graph.capture(stream, () => narrow.launch({ grid: 1, block: 7, stream }, near));
    graph.setArguments(graph.kernelNode(narrow), far);
    await Promise.all([Context.primary(0).synchronize(), Context.primary(1).synchronize()]);
    // Clears what was noted when the arguments were written, so that only the launch notes it.
    assert.equal(Context.primary(1).workTracker.isIdle(), true);
    using latch = new Latch();
    latch.hold(stream);
    graph.launch({ stream });
    far.close();
    assert.equal(Context.primary(1).pendingReleases.count, 1);
    latch.open();
    await Context.primary(1).flush();
  });

  test('a launch in a captured borrowed stream has a node whose arguments can be set', async () => {
    watch();
    using module = loadKernels();
    const narrow = module.kernel('narrow', ['pointer']);
    using owner = Stream.create({ nonBlocking: true });
    using first = DeviceBuffer.allocate(4);
    using second = DeviceBuffer.allocate(4);
    const stream = Stream.fromHandle(owner.handle);
    for (const captured of [owner, stream]) {
      for (const buffer of [first, second]) buffer.fill(0);
      await Context.primary().synchronize();
      using graph = Graph.capture(captured, () => {
        narrow.launch({ grid: 1, block: 7, stream }, first);
        narrow.launch({ grid: 2, block: [5, 2], stream }, null);
      });
      assert.deepEqual(
        graph.kernelNodes.map(({ grid, block }) => [grid, block]),
        [
          [
            [1, 1, 1],
            [7, 1, 1],
          ],
          [
            [2, 1, 1],
            [5, 2, 1],
          ],
        ],
      );
      graph.setArguments(graph.kernelNode(narrow, 1), second);
      graph.launch({ stream });
      await owner.synchronize();
      assert.deepEqual([first.copyToHostSync()[0], second.copyToHostSync()[0]], [7, 5]);
    }
  });

  test('memory that an update uses stays allocated until the launches are done', async () => {
    watch({ CUFFI_EMULATED_DEVICES: '2' });
    using module = loadKernels();
    const narrow = module.kernel('narrow', ['pointer']);
    using stream = Stream.create({ nonBlocking: true });
    using near = DeviceBuffer.allocate(4);
    Context.primary(0).enablePeerAccess(Context.primary(1));
    const far = DeviceBuffer.allocate(4, { device: 1 });
    const launching = (buffer: DeviceBuffer) => () =>
      narrow.launch({ grid: 1, block: 7, stream }, buffer);
    using graph = Graph.capture(stream, launching(near));
    graph.update(stream, launching(far));
    await Promise.all([Context.primary(0).synchronize(), Context.primary(1).synchronize()]);
    assert.equal(Context.primary(1).workTracker.isIdle(), true);
    using latch = new Latch();
    latch.hold(stream);
    graph.launch({ stream });
    far.close();
    assert.equal(Context.primary(1).pendingReleases.count, 1);
    latch.open();
    await Context.primary(1).flush();
  });

  test('a closed graph is destroyed once earlier work is done, whatever is queued later', () => {
    const { calls } = watch();
    const context = Context.primary();
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(64);
    const graph = Graph.capture(stream, () => buffer.fill(1, { stream }));
    using latch = new Latch();
    using later = new Latch();
    latch.hold(stream);
    graph.launch({ stream });
    graph.close();
    assert.equal(context.releases.drainReady(), false);
    later.hold(other);
    assert.ok(!calls.includes('cuGraphExecDestroy'));
    latch.open();
    assert.equal(context.releases.drainReady(), true);
    assert.ok(calls.includes('cuGraphExecDestroy') && calls.includes('cuGraphDestroy'));
    assert.equal(other.done, false);
  });

  test('captured work and arguments are not collected while the graph may be launched', async () => {
    watch();
    using stream = Stream.create({ nonBlocking: true });
    using module = loadKernels();
    const narrow = module.kernel('narrow', ['pointer']);
    const kept: [what: string, buffer: WeakRef<DeviceBuffer>][] = [];
    const make = (what: string): DeviceBuffer => {
      const buffer = DeviceBuffer.allocate(4);
      kept.push([what, new WeakRef(buffer)]);
      return buffer;
    };
    /** Only the captured function references the memory of the fill. */
    const working = (what: string) => {
      const filled = make(`${what}, filled`);
      const given = [make(`${what}, given`)];
      return (): void => {
        filled.fill(3, { stream });
        narrow.launch({ grid: 1, block: 7, stream }, given.pop() as DeviceBuffer);
      };
    };
    const begin = (): Graph => {
      const graph = Graph.capture(stream, working('captured'));
      graph.setArguments(graph.kernelNode(narrow), make('set'));
      return graph;
    };
    // Queued launches may still use the earlier arguments.
    const beginUpdated = (): Graph => {
      const graph = Graph.capture(stream, working('captured before'));
      graph.update(stream, working('updated'));
      return graph;
    };
    using graph = begin();
    using updated = beginUpdated();
    await collectGarbage();
    for (const [what, buffer] of kept) assert.equal(buffer.deref()?.closed, false, what);
    for (const each of [graph, updated]) each.launch({ stream });
    await stream.synchronize();
    const firstOf = (name: string): number | undefined =>
      kept
        .find(([what]) => what === name)?.[1]
        .deref()
        ?.copyToHostSync()[0];
    assert.deepEqual(
      [firstOf('set'), firstOf('updated, given'), firstOf('updated, filled')],
      [7, 7, 3],
    );
    for (const [, buffer] of kept) buffer.deref()?.close();
  });

  test('nothing is allocated in a stream that another library captures', () => {
    const driver = emulate();
    selectDriver(driver);
    using pool = MemoryPool.create({ maxSize: 1 << 20 });
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    using _graph = Graph.capture(stream, () => {
      pool.allocate(4096, { stream }).close({ stream });
      const begun = driver.cuStreamBeginCapture_v2(other.handle, CU_STREAM_CAPTURE_MODE_RELAXED);
      assert.equal(begun, CUresult.CUDA_SUCCESS);
      assert.throws(() => pool.allocate(4096, { stream: other }), {
        name: 'CuffiError',
        message: /while a graph is captured needs a captured stream/,
      });
      assert.equal(driver.cuStreamEndCapture(other.handle, OUT3), CUresult.CUDA_SUCCESS);
      driver.cuGraphDestroy(readHandle<CUgraph>(OUT3));
    });
  });
});
