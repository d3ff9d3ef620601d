import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { OUT0, readHandle } from '../../../../ffi/arena.ts';
import { cu, recordCalls } from '../../../../ffi/driver.ts';
import type { CUgraph } from '../../../../ffi/types.ts';
import { Context, CudaEvent, DeviceBuffer, Graph, Stream } from '../../../../src/index.ts';
import { Timeline } from '../../../../src/ipc/index.ts';
import { Signaler } from '../../../../src/ipc/timeline/connection-timeline.ts';
import { SharedWords } from '../../../../src/ipc/timeline/words.ts';
import { until } from '../../../support/iterations.ts';
import { emulate } from '../emulate.ts';

const newStream = (): Stream => Stream.create({ nonBlocking: true });

describe('WorkCounters', () => {
  test('count nothing once no stream waits, whichever stream has counted', async () => {
    emulate();
    const { workCounters } = Context.primary();
    using buffer = DeviceBuffer.allocate(16);
    using timeline = Timeline.create();
    using blocking = Stream.create();
    using other = newStream();
    using event = CudaEvent.create({ timing: false });
    timeline.wait(1);
    buffer.fill(1, { stream: blocking });
    event.record(blocking);
    other.wait(event);
    assert.deepEqual(
      [blocking, other].map(({ handle }) => workCounters.isCounted(handle)),
      [true, true],
    );
    timeline.signal(1, { stream: newStream() });
    await other.synchronize();
    await blocking.synchronize();
    workCounters.refresh();
    assert.equal(workCounters.isActive, false);
    assert.deepEqual(
      [blocking, other].map(({ handle }) => workCounters.has(handle)),
      [false, false],
    );
  });

  test('give the event of a mark back when its stream is destroyed, whatever it waits for', async () => {
    emulate();
    const context = Context.primary();
    using timeline = Timeline.create();
    using blocking = Stream.create();
    using event = CudaEvent.create({ timing: false });
    const counts: number[] = [];
    for (let value = 1; value <= 6; value += 1) {
      const other = newStream();
      timeline.wait(value, { stream: blocking });
      event.record(blocking);
      other.wait(event);
      // Marks what the stream waits for.
      context.workCounters.refresh();
      context.workCounters.delete(other.handle);
      using signaling = newStream();
      timeline.signal(value, { stream: signaling });
      await blocking.synchronize();
      other.close();
      await context.flush();
      counts.push(context.workTracker.eventCount);
    }
    assert.equal(counts.at(-1), counts[1], String(counts));
  });

  test('an event that is captured, or whose work is done, makes no stream wait', async () => {
    emulate();
    const { workCounters } = Context.primary();
    using timeline = Timeline.create();
    using waiting = newStream();
    using other = newStream();
    using captured = newStream();
    using event = CudaEvent.create({ timing: false });
    timeline.wait(1, { stream: waiting });
    event.record(other);
    captured.wait(event);
    using graph = Graph.capture(captured, () => {
      event.record(captured);
      captured.wait(event);
    });
    assert.equal(workCounters.isCounted(captured.handle), false);
    timeline.signal(1, { stream: other });
    await waiting.synchronize();
    void graph;
  });

  test('the flags of a captured stream are not read: that would end the capture', async () => {
    emulate();
    using buffer = DeviceBuffer.allocate(16);
    using timeline = Timeline.create();
    using captured = newStream();
    using foreign = newStream();
    // In the legacy default stream: blocking streams stand behind it.
    timeline.wait(1);
    using graph = Graph.capture(captured, () => buffer.fill(1, { stream: captured }));
    assert.equal(cu.cuStreamBeginCapture_v2(foreign.handle, 2), 0);
    buffer.fill(2, { stream: Stream.fromHandle(foreign.handle) });
    assert.equal(cu.cuStreamEndCapture(foreign.handle, OUT0), 0);
    assert.equal(cu.cuGraphDestroy(readHandle<CUgraph>(OUT0)), 0);
    timeline.signal(1, { stream: newStream() });
    await Context.primary().synchronize();
    void graph;
  });

  test('an event of another device stands behind what its stream waits for', async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using timeline = Timeline.create();
    using there = Stream.create({ device: 1, nonBlocking: true });
    using here = newStream();
    using event = CudaEvent.create({ device: 1, timing: false });
    timeline.wait(1, { stream: there });
    event.record(there);
    here.wait(event);
    assert.equal(here.context.workCounters.isCounted(here.handle), true);
    timeline.signal(1, { stream: newStream() });
    await here.synchronize();
  });
});

describe('a Signaler', () => {
  for (const kind of ['default', 'blocking'] as const)
    test(`lets the host signal what has no room behind the waiting default stream: ${kind}`, async () => {
      emulate();
      const signaler = new Signaler(SharedWords.create('points'));
      const context = Context.primary();
      using timeline = Timeline.create();
      using buffer = DeviceBuffer.allocate(16);
      using blocking = Stream.create();
      timeline.wait(1);
      buffer.fill(1);
      if (kind === 'blocking') buffer.fill(1, { stream: blocking });
      using recorder = recordCalls();
      const points = Array.from({ length: 1200 }, () =>
        kind === 'blocking'
          ? signaler.pointsBehindStream(blocking)
          : signaler.pointsBehindContext(context),
      ).flat();
      const writes = recorder.calls.filter(({ name }) => name.startsWith('cuStreamWriteValue'));
      // Behind a context, a point is one write in each of its streams.
      assert.ok(writes.length > 0 && writes.length <= 2 * 960, String(writes.length));
      assert.equal(
        points.some((point) => signaler.words.isReached(point)),
        false,
      );
      timeline.signal(1, { stream: newStream() });
      await until(() => points.every((point) => signaler.words.isReached(point)));
      signaler.close();
    });
});
