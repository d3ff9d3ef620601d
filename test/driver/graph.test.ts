import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  driverVersion,
  Graph,
  MemoryPool,
  Stream,
  toDevice,
} from '../../src/index.ts';
import { emulated } from '../support/driver.ts';
import { loadKernels } from '../support/kernels.ts';
import { stateBesideCode } from '../support/process-state.ts';
import { collectFacts } from './facts/facts.ts';
import { graphFacts } from './facts/kernel.ts';

const SAXPY = ['float32', 'float32*', 'float32*', 'uint32'] as const;
const shape = { grid: 1, block: 32 };

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
  skip: (driverVersion().major < 12 && 'the driver cannot update graphs'),
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

test('what would break a capture is refused with a sentence, and the capture goes on', async () => {
  using stream = Stream.create({ nonBlocking: true });
  using event = CudaEvent.create();
  using buffer = DeviceBuffer.allocate(4096);
  using pool = MemoryPool.create({ maxSize: 1 << 20 });
  const pooled = pool.allocate(16, { stream });
  const closed = DeviceBuffer.allocate(16);
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
      () => buffer.copyFromSync(bytes, { stream }),
      () => DeviceBuffer.allocate(16),
      () => pool.allocate(16, { stream }),
      () => Graph.capture(stream, () => {}),
    ])
      assert.throws(act, refused, String(act));
    waits.push(stream.synchronize(), context.synchronize(), buffer.copyToHost());
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

test('tells which calls about graphs need a current context', {
  skip: emulated && 'what a GPU answers is only shown',
}, async (t) => {
  for (const [what, answer] of await collectFacts([graphFacts])) t.diagnostic(`${what}: ${answer}`);
});
