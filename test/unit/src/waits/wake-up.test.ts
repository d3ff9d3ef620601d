import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { OUT0, readHandle } from '../../../../ffi/arena.ts';
import { cu, recordCalls, selectDriver } from '../../../../ffi/driver.ts';
import type { Driver } from '../../../../ffi/functions.ts';
import { fflushAddress } from '../../../../ffi/linux/wake-file.ts';
import type { CUgraph } from '../../../../ffi/types.ts';
import { Context, CudaEvent, DeviceBuffer, Graph, Stream } from '../../../../src/index.ts';
import { Timeline } from '../../../../src/ipc/index.ts';
import { wakeBehindEvent, wakeBehindStream } from '../../../../src/waits/wake-up.ts';
import { broken } from '../../../support/faults.ts';
import { until } from '../../../support/iterations.ts';
import { Latch } from '../../../support/latch.ts';
import { emulate } from '../emulate.ts';

const LAUNCH = 'cuLaunchHostFunc';

const makeStream = (): Stream => Stream.create({ nonBlocking: true });

describe('wake-ups', () => {
  test("a wait sleeps until the driver calls fflush, in a stream that is not the user's", async () => {
    const driver = emulate();
    const launched: number[][] = [];
    const launch: Driver['cuLaunchHostFunc'] = (...args) => {
      launched.push(args);
      return driver.cuLaunchHostFunc(...args);
    };
    selectDriver({ ...driver, cuLaunchHostFunc: launch });
    using stream = makeStream();
    using latch = new Latch();
    latch.hold(stream);
    let isDone = false;
    const waiting = stream.synchronize().then(() => {
      isDone = true;
    });
    await until(() => launched.length > 0);
    assert.equal(isDone, false);
    latch.open();
    await waiting;
    assert.equal(launched.length, 1);
    assert.notEqual(launched[0]?.[0], stream.handle);
    assert.equal(launched[0]?.[1], fflushAddress());
  });

  test('all waits for a stream share one function; canceled ones are not called', async () => {
    emulate();
    using stream = makeStream();
    using latch = new Latch();
    latch.hold(stream);
    const recorder = recordCalls();
    const called: number[] = [];
    const cancels = [0, 1, 2].map((index) =>
      wakeBehindStream(stream, stream.handle, () => called.push(index)),
    );
    assert.equal(recorder.calls.filter(({ name }) => name === LAUNCH).length, 1);
    recorder.stop();
    cancels[1]?.();
    assert.deepEqual(called, []);
    latch.open();
    await until(() => called.length === 2);
    assert.deepEqual(called, [0, 2]);
  });

  test('a context has up to 16 pending functions, one for each stream or event', async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    using latch = new Latch();
    const streams = Array.from({ length: 17 }, makeStream);
    using behind = makeStream();
    const [first, second] = streams as [Stream, Stream];
    for (const stream of [first, second]) latch.hold(stream);
    using event = CudaEvent.create();
    event.record(second);
    const called: number[] = [];
    const recorder = recordCalls();
    assert.ok(wakeBehindStream(first, first.handle, () => called.push(0)));
    assert.ok(wakeBehindEvent(event, event.handle, () => called.push(1)));
    assert.ok(wakeBehindStream(behind, behind.handle, () => called.push(2)));
    await until(() => called.length > 0);
    assert.deepEqual(called, [2]);
    // The stream of the function that was called is used again.
    const streamsMade = () =>
      recorder.calls.filter(({ name }) => name === 'cuStreamCreateWithPriority').length;
    assert.equal(streamsMade(), 3);
    assert.ok(wakeBehindStream(behind, behind.handle, () => called.push(3)));
    assert.equal(streamsMade(), 3);
    for (const stream of streams.slice(2, 15)) {
      stream.wait(event);
      assert.ok(wakeBehindStream(stream, stream.handle, () => called.push(4)));
    }
    const last = streams[16] as Stream;
    assert.equal(
      wakeBehindStream(last, last.handle, () => {}),
      undefined,
    );
    recorder.stop();
    const device1 = Context.primary(1);
    using elsewhere = Stream.create({ context: device1, nonBlocking: true });
    assert.ok(wakeBehindStream(elsewhere, elsewhere.handle, () => called.push(5)));
    latch.open();
    await until(() => called.length === 18);
    assert.ok(wakeBehindStream(last, last.handle, () => called.push(6)));
    await until(() => called.includes(6));
    for (const stream of streams) stream.close();
  });

  test('while three streams wait for timelines, other waits poll', async () => {
    emulate();
    using timeline = Timeline.create();
    const streams = [makeStream(), makeStream(), makeStream()];
    using other = makeStream();
    const arm = (): unknown => wakeBehindStream(other, other.handle, () => {});
    for (const stream of streams.slice(1)) timeline.wait(1, { stream });
    assert.ok(arm());
    await other.synchronize();
    timeline.wait(2, { stream: streams[0] as Stream });
    assert.equal(arm(), undefined);
    timeline.signal(2, { stream: other });
    await other.synchronize();
    for (const stream of streams) {
      await stream.synchronize();
      stream.close();
    }
    await until(() => arm() !== undefined);
  });

  test('an aborted wait leaves its function pending, and a later wait is woken by it', async () => {
    emulate();
    using stream = makeStream();
    using latch = new Latch();
    latch.hold(stream);
    const recorder = recordCalls();
    const controller = new AbortController();
    const waiting = stream.synchronize({ signal: controller.signal });
    await until(() => recorder.calls.some(({ name }) => name === LAUNCH));
    controller.abort(new Error('enough'));
    await assert.rejects(waiting, /enough/);
    const again = stream.synchronize();
    latch.open();
    await again;
    recorder.stop();
    assert.ok(recorder.calls.filter(({ name }) => name === LAUNCH).length <= 2);
  });

  test('a stream that is closed during the wait ends it with ClosedError', async () => {
    emulate();
    const stream = makeStream();
    using latch = new Latch();
    latch.hold(stream);
    const recorder = recordCalls();
    const waiting = stream.synchronize();
    await until(() => recorder.calls.some(({ name }) => name === LAUNCH));
    recorder.stop();
    stream.close();
    await assert.rejects(waiting, { name: 'ClosedError' });
  });

  test('an error of the context ends a sleeping wait, although nobody wakes it', async () => {
    const driver = emulate();
    using stream = makeStream();
    using latch = new Latch();
    latch.hold(stream);
    const recorder = recordCalls();
    const waiting = stream.synchronize();
    await until(() => recorder.calls.some(({ name }) => name === LAUNCH));
    recorder.stop();
    selectDriver(broken(driver, 'cuStreamQuery', 719));
    await assert.rejects(waiting, { name: 'CudaError', status: 719 });
    selectDriver(driver);
  });

  for (const call of ['cuLaunchHostFunc', 'cuStreamWaitEvent', 'cuEventRecord'] as const)
    test(`without ${call} a wait polls`, async () => {
      const driver = emulate();
      selectDriver(broken(driver, call, 801));
      using stream = makeStream();
      using latch = new Latch();
      latch.hold(stream);
      let isDone = false;
      const waiting = stream.synchronize().then(() => {
        isDone = true;
      });
      for (let turn = 0; turn < 200; turn += 1)
        await new Promise((resolve) => setImmediate(resolve));
      assert.equal(isDone, false);
      latch.open();
      await waiting;
      assert.equal(
        wakeBehindStream(stream, stream.handle, () => {}),
        undefined,
      );
      selectDriver(driver);
    });

  test('a driver that refused the function is not asked again', () => {
    selectDriver(broken(emulate(), LAUNCH, 801));
    using stream = makeStream();
    const recorder = recordCalls();
    for (let n = 0; n < 3; n += 1)
      assert.equal(
        wakeBehindStream(stream, stream.handle, () => {}),
        undefined,
      );
    recorder.stop();
    assert.equal(recorder.calls.filter(({ name }) => name === LAUNCH).length, 1);
  });

  test('during a capture, of cuffi or of another library, no call is made', () => {
    emulate();
    using stream = makeStream();
    using buffer = DeviceBuffer.allocate(16);
    using event = CudaEvent.create();
    using graph = Graph.capture(stream, () => {
      buffer.fill(1, { stream });
      assert.equal(
        wakeBehindStream(stream, stream.handle, () => {}),
        undefined,
      );
      assert.equal(
        wakeBehindEvent(event, event.handle, () => {}),
        undefined,
      );
    });
    assert.ok(graph);
    assert.equal(cu.cuStreamBeginCapture_v2(stream.handle, 2), 0);
    assert.equal(
      wakeBehindStream(stream, stream.handle, () => {}),
      undefined,
    );
    // Leaves the capture valid.
    assert.equal(cu.cuStreamEndCapture(stream.handle, OUT0), 0);
    cu.cuGraphDestroy(readHandle<CUgraph>(OUT0));
  });

  test('after a reset of the context there are wake-ups again', async () => {
    emulate();
    {
      using stream = makeStream();
      await stream.synchronize();
      let isCalled = false;
      wakeBehindStream(stream, stream.handle, () => {
        isCalled = true;
      });
      await until(() => isCalled);
    }
    await Context.primary().reset();
    using stream = makeStream();
    let isCalled = false;
    assert.ok(
      wakeBehindStream(stream, stream.handle, () => {
        isCalled = true;
      }),
    );
    await until(() => isCalled);
  });
});
