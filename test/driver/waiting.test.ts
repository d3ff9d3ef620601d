/** What fits behind a stream that waits for another process, and what does not. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Context, CudaEvent, DeviceBuffer, Graph, MemoryPool, Stream } from '../../src/index.ts';
import { Timeline } from '../../src/ipc/index.ts';
import { loadKernels } from '../support/kernels.ts';

const MAX_WORK = 960;
const REFUSED =
  /^CuffiError: 960 operations are queued in this stream behind a wait.*timeline\.reached\(\)/;

const skip = Timeline.canWait() ? false : 'the streams of this device cannot wait';
const context = Context.primary();
const newStream = (): Stream => Stream.create({ nonBlocking: true });

/** Calls `queue` until it throws; returns how often it did not. */
function countFitting(queue: (n: number) => void): number {
  for (let n = 0; n < 2 * MAX_WORK; n += 1) {
    try {
      queue(n);
    } catch (error) {
      assert.match(String(error), REFUSED);
      return n;
    }
  }
  return 2 * MAX_WORK;
}

async function release(timeline: Timeline, value: number, waiting?: Stream): Promise<void> {
  using other = newStream();
  timeline.signal(value, { stream: other });
  if (waiting) await waiting.synchronize();
  else await context.synchronize();
}

describe('behind a wait', { skip }, () => {
  test('work of each kind is refused before the driver would block, until it has run', async () => {
    using module = loadKernels({ loading: 'eager' });
    const kernel = module.kernel('nothing', []);
    using buffer = DeviceBuffer.allocate(4096);
    using source = DeviceBuffer.allocate(4096);
    using stream = newStream();
    using other = newStream();
    using event = CudaEvent.create({ timing: false });
    using graph = Graph.capture(other, () => buffer.fill(1, { stream: other }));
    using timeline = Timeline.create();
    graph.launch({ stream });
    await stream.synchronize();
    timeline.wait(1, { stream });
    const kinds = [
      () => buffer.fill(7, { stream }),
      () => kernel.launch({ grid: 1, block: 1, stream }),
      () => graph.launch({ stream }),
    ];
    assert.equal(
      countFitting((n) => kinds[n % 3]?.()),
      MAX_WORK - 1,
    );
    for (const kind of kinds) assert.throws(kind, REFUSED);
    assert.throws(() => timeline.wait(2, { stream }), /too much work is queued behind waits/);
    // Events are not counted, nor is the work of other streams.
    for (let n = 0; n < 2 * MAX_WORK; n += 1) event.record(stream);
    for (let n = 0; n < 2 * MAX_WORK; n += 1) source.fill(8, { stream: other });
    await other.synchronize();
    assert.equal(stream.done, false);
    await release(timeline, 1, stream);
    for (let n = 0; n < 2 * MAX_WORK; n += 1) buffer.fill(9, { stream });
    await stream.synchronize();
    assert.deepEqual(await buffer.copyToHost(new Uint8Array(1)), new Uint8Array([9]));
  });

  test('work of the default stream is refused, too', async () => {
    using buffer = DeviceBuffer.allocate(16);
    using timeline = Timeline.create();
    timeline.wait(1);
    assert.equal(
      countFitting(() => buffer.fill(1)),
      MAX_WORK - 1,
    );
    assert.throws(() => buffer.fill(1, { stream: Stream.legacyDefault() }), REFUSED);
    await release(timeline, 1);
    for (let n = 0; n < 2 * MAX_WORK; n += 1) buffer.fill(1);
    await context.synchronize();
  });

  test('work of blocking streams is refused while the default stream waits, and no other', async () => {
    using buffer = DeviceBuffer.allocate(16);
    using timeline = Timeline.create();
    using blocking = Stream.create();
    using other = newStream();
    timeline.wait(1);
    for (const stream of [blocking, Stream.perThreadDefault()]) {
      assert.equal(
        countFitting(() => buffer.fill(1, { stream })),
        MAX_WORK,
      );
      assert.throws(() => buffer.fill(1, { stream }), REFUSED);
    }
    for (let n = 0; n < 2 * MAX_WORK; n += 1) buffer.fill(2, { stream: other });
    await other.synchronize();
    await release(timeline, 1);
    for (let n = 0; n < 2 * MAX_WORK; n += 1) buffer.fill(1, { stream: blocking });
    await blocking.synchronize();
  });

  test('while a blocking stream waits, the default stream stands behind it, and others behind that', async () => {
    using buffer = DeviceBuffer.allocate(16);
    using timeline = Timeline.create();
    using waiting = Stream.create();
    using beside = Stream.create();
    timeline.wait(1, { stream: waiting });
    // Nothing of the default stream is between them.
    for (let n = 0; n < 2 * MAX_WORK; n += 1) buffer.fill(1, { stream: beside });
    await beside.synchronize();
    assert.equal(
      countFitting(() => buffer.fill(2)),
      MAX_WORK,
    );
    // Of what it had before, some may still count.
    const fitting = countFitting(() => buffer.fill(3, { stream: beside }));
    assert.ok(fitting > MAX_WORK / 2 && fitting <= MAX_WORK, String(fitting));
    await release(timeline, 1);
    for (let n = 0; n < 2 * MAX_WORK; n += 1) buffer.fill(4);
    await context.synchronize();
  });

  test('work behind an event of a stream that waits is refused, and behind an event of such a stream', async () => {
    using buffer = DeviceBuffer.allocate(16);
    using timeline = Timeline.create();
    using waiting = newStream();
    using second = newStream();
    using third = newStream();
    using early = CudaEvent.create({ timing: false });
    using event = CudaEvent.create({ timing: false });
    using next = CudaEvent.create({ timing: false });
    buffer.fill(1, { stream: waiting });
    early.record(waiting);
    timeline.wait(1, { stream: waiting });
    // What was recorded before the wait does not stand behind it.
    second.wait(early);
    for (let n = 0; n < 2 * MAX_WORK; n += 1) buffer.fill(2, { stream: second });
    event.record(waiting);
    second.wait(event);
    next.record(second);
    third.wait(next);
    for (const stream of [second, third])
      assert.equal(
        countFitting(() => buffer.fill(3, { stream })),
        MAX_WORK,
      );
    await release(timeline, 1, third);
    for (let n = 0; n < 2 * MAX_WORK; n += 1) buffer.fill(4, { stream: third });
    await third.synchronize();
  });

  test('work in several objects of one stream counts together', async () => {
    using buffer = DeviceBuffer.allocate(16);
    using stream = newStream();
    const same = Stream.fromHandle(stream.handle);
    using timeline = Timeline.create();
    timeline.wait(1, { stream });
    timeline.wait(2, { stream: same });
    assert.equal(
      countFitting((n) => buffer.fill(1, { stream: n % 2 === 0 ? stream : same })),
      MAX_WORK - 2,
    );
    await release(timeline, 2, stream);
  });

  test('the host stores a value of a timeline for which the stream has no room', async () => {
    using buffer = DeviceBuffer.allocate(16);
    using stream = newStream();
    using timeline = Timeline.create();
    using signaled = Timeline.create();
    timeline.wait(1, { stream });
    countFitting(() => buffer.fill(1, { stream }));
    for (let value = 1; value <= 100; value += 1) signaled.signal(value, { stream });
    assert.equal(signaled.value, 0);
    await release(timeline, 1, stream);
    await signaled.reached(100, { timeoutMs: 10_000 });
  });

  test('work that has run before a later wait makes room', async () => {
    using buffer = DeviceBuffer.allocate(16);
    using stream = newStream();
    using event = CudaEvent.create({ timing: false });
    using timeline = Timeline.create();
    timeline.wait(1, { stream });
    for (let n = 0; n < 500; n += 1) buffer.fill(1, { stream });
    event.record(stream);
    timeline.wait(2, { stream });
    using other = newStream();
    timeline.signal(1, { stream: other });
    await event.synchronize();
    assert.equal(stream.done, false);
    for (let n = 0; n < 550; n += 1) buffer.fill(1, { stream });
    timeline.signal(2, { stream: other });
    await stream.synchronize();
  });

  test('memory of pools is allocated and freed without a limit', async () => {
    using pool = MemoryPool.create({ maxSize: 64 << 20 });
    for (const stream of [newStream(), Stream.perThreadDefault()]) {
      using timeline = Timeline.create();
      using buffer = DeviceBuffer.allocate(16);
      const held = Array.from({ length: 8 }, () => pool.allocate(1024, { stream }));
      timeline.wait(1, { stream });
      countFitting(() => buffer.fill(1, { stream }));
      for (const one of held) one.close();
      for (let n = 0; n < 16; n += 1) pool.allocate(1024, { stream }).close();
      await release(timeline, 1, stream);
      assert.equal(pool.used, 0);
      stream.close();
    }
  });

  test('a graph that is captured there has no limit', async () => {
    using buffer = DeviceBuffer.allocate(16);
    using stream = newStream();
    using timeline = Timeline.create();
    timeline.wait(1, { stream });
    using graph = Graph.capture(stream, () => {
      for (let n = 0; n < MAX_WORK + 100; n += 1) buffer.fill(n % 256, { stream });
    });
    await release(timeline, 1, stream);
    graph.launch({ stream });
    await stream.synchronize();
    assert.equal((await buffer.copyToHost(new Uint8Array(1)))[0], (MAX_WORK + 99) % 256);
  });

  test('a stream that is closed leaves no count', async () => {
    using timeline = Timeline.create();
    const stream = newStream();
    timeline.wait(1, { stream });
    const { handle } = stream;
    assert.equal(context.workCounters.has(handle), true);
    await release(timeline, 1, stream);
    stream.close();
    await context.flush();
    assert.equal(context.workCounters.has(handle), false);
  });
});
