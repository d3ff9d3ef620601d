import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  Stream,
  toDevice,
  toDeviceSync,
} from '../../src/index.ts';
import { turns, until } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';

describe('Stream', () => {
  test('a stream runs its work in order, and says when it is done', async () => {
    using stream = Stream.create();
    using buffer = DeviceBuffer.allocate(1 << 16);
    buffer.fill(1, { stream });
    buffer.fill(2, { stream });
    await stream.synchronize();
    assert.equal(stream.done, true);
    assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([2]));
  });

  test('work behind a latch stays undone, and awaiting it lets the event loop turn', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(1024);
    using latch = new Latch();
    buffer.fill(5, { stream });
    await stream.synchronize();
    latch.hold(stream);
    buffer.fill(6, { stream });
    assert.equal(stream.done, false);
    let ticks = 0;
    const ticking = setInterval(() => {
      ticks += 1;
      if (ticks === 5) latch.open();
    }, 1);
    await stream.synchronize();
    clearInterval(ticking);
    assert.ok(ticks >= 5);
    assert.deepEqual(new Set(await buffer.copyToHost()), new Set([6]));
  });

  test('the end of an `await using` scope waits for the work, and closes the stream', async () => {
    using buffer = DeviceBuffer.allocate(64);
    using latch = new Latch();
    let stream: Stream;
    {
      await using own = Stream.create({ nonBlocking: true });
      stream = own;
      latch.hold(own);
      buffer.fill(7, { stream: own });
      setTimeout(() => latch.open(), 5);
    }
    assert.equal(stream.closed, true);
    assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([7]));
    // One that was closed before is not waited for.
    await stream[Symbol.asyncDispose]();
  });

  test('a wait or a copy that takes too long rejects, and its work goes on', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using event = CudaEvent.create();
    using buffer = DeviceBuffer.allocate(64);
    using array = toDeviceSync([1, 2]);
    const context = Context.primary();
    using latch = new Latch();
    latch.hold(stream);
    buffer.fill(1, { stream });
    event.record(stream);
    // Should the limits have no effect, this ends the test instead.
    const options = { timeoutMs: 2, signal: AbortSignal.timeout(10_000) };
    const copying = { stream, ...options };
    const waits = {
      'waiting for a stream': () => stream.synchronize(options),
      'waiting for an event': () => event.synchronize(options),
      'waiting for a context': () => context.synchronize(options),
      copyToHost: () => buffer.copyToHost(undefined, copying),
      copyFrom: () => array.copyFrom([1, 2], copying),
      set: () => array.set([], 1, copying),
      toDevice: () => toDevice([1, 2], copying),
    };
    for (const [operation, wait] of Object.entries(waits))
      await assert.rejects(wait, {
        name: 'TimeoutError',
        message: `${operation} took longer than 2 ms`,
      });
    latch.open();
    await stream.synchronize({ timeoutMs: 60_000 });
    assert.deepEqual(new Set(await buffer.copyToHost()), new Set([1]));
  });

  test('a stream waits for the event of another', async () => {
    using first = Stream.create({ nonBlocking: true });
    using second = Stream.create({ nonBlocking: true });
    using event = CudaEvent.create({ timing: false });
    using buffer = DeviceBuffer.allocate(256);
    using latch = new Latch();
    latch.hold(first);
    buffer.fill(1, { stream: first });
    event.record(first);
    second.wait(event);
    buffer.fill(2, { stream: second });
    assert.equal(second.done, false);
    latch.open();
    await second.synchronize();
    assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([2]));
  });

  test('a blocking stream orders itself with the legacy default stream, a non-blocking one does not', async () => {
    using blocking = Stream.create();
    using free = Stream.create({ nonBlocking: true });
    using legacy = Stream.legacyDefault();
    using buffer = DeviceBuffer.allocate(256);
    using latch = new Latch();
    assert.equal(blocking.nonBlocking, false);
    assert.equal(free.nonBlocking, true);
    latch.hold(blocking);
    buffer.fill(1);
    assert.equal(legacy.done, false);
    buffer.subarray(0, 16).fill(2, { stream: free });
    await free.synchronize();
    latch.open();
    await legacy.synchronize();
    assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([1]));
  });

  test('priorities are those of the device', () => {
    const { least, greatest } = Context.primary().streamPriorityRange();
    assert.ok(greatest <= least);
    using urgent = Stream.create({ priority: greatest });
    assert.equal(urgent.priority, greatest);
  });

  test('the per-thread default stream works, and default streams are never destroyed', async () => {
    const stream = Stream.perThreadDefault();
    using buffer = DeviceBuffer.allocate(64);
    buffer.fill(4, { stream });
    await stream.synchronize();
    assert.equal(stream.done, true);
    stream.close();
    assert.throws(() => stream.done, { name: 'ClosedError' });
    assert.equal(Stream.perThreadDefault().done, true);
    assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([4]));
  });

  test('a borrowed stream finds its context, and closing it leaves it to its owner', async () => {
    using owner = Stream.create();
    using other = Stream.create({ nonBlocking: true });
    const borrowed = Stream.fromHandle(owner.handle);
    assert.equal(borrowed.context, Context.primary());
    assert.deepEqual([borrowed.nonBlocking, borrowed.priority], [false, 0]);
    assert.equal(Stream.fromHandle(other.handle).nonBlocking, true);
    assert.equal(Stream.legacyDefault().priority, 0);
    using buffer = DeviceBuffer.allocate(64);
    buffer.fill(8, { stream: borrowed });
    await borrowed.synchronize();
    borrowed.close();
    assert.equal(owner.done, true);
  });

  test('autoSynchronize waits at the end of its scope', async () => {
    using stream = Stream.create();
    using buffer = DeviceBuffer.allocate(1 << 20);
    {
      await using scope = stream.autoSynchronize();
      buffer.fill(1, { stream: scope.stream });
    }
    assert.equal(stream.done, true);
  });

  test('onDone calls back once, when the work queued before is done, whatever is queued later', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(1 << 20);
    using latch = new Latch();
    using later = new Latch();
    const calls: unknown[] = [];
    latch.hold(stream);
    buffer.fill(1, { stream });
    stream.onDone((...args) => calls.push(args));
    later.hold(stream);
    for (let turn = 0; turn < 5; turn += 1) await setImmediate();
    assert.deepEqual(calls, []);
    latch.open();
    await until(() => calls.length > 0);
    assert.equal(stream.done, false);
    later.open();
    await stream.synchronize();
    for (let turn = 0; turn < 5; turn += 1) await setImmediate();
    assert.deepEqual(calls, [[undefined]]);
  });

  test('onDone calls back in default and borrowed streams, and after the stream was closed', async () => {
    using owner = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    const closing = Stream.create({ nonBlocking: true });
    latch.hold(owner);
    latch.hold(closing);
    const called: string[] = [];
    Stream.fromHandle(owner.handle).onDone(() => called.push('borrowed'));
    closing.onDone(() => called.push('closed'));
    closing.close();
    assert.throws(() => closing.onDone(() => {}), { name: 'ClosedError' });
    latch.open();
    await until(() => called.length === 2);
    Stream.legacyDefault().onDone(() => called.push('legacy'));
    Stream.perThreadDefault().onDone(() => called.push('per thread'));
    // Never within the call.
    assert.equal(called.length, 2);
    await until(() => called.length === 4);
    assert.deepEqual(called.sort(), ['borrowed', 'closed', 'legacy', 'per thread']);
  });

  test('onDone can be canceled until it has called back', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    const calls: string[] = [];
    latch.hold(stream);
    const cancel = stream.onDone(() => calls.push('canceled while it waits'));
    cancel();
    cancel();
    latch.open();
    await stream.synchronize();
    stream.onDone(() => calls.push('canceled at once'))();
    // Both are due in the same iteration of the event loop.
    stream.onDone(() => cancelDue());
    const cancelDue = stream.onDone(() => calls.push('canceled while it was due'));
    stream.onDone(() => calls.push('called'));
    await until(() => calls.length > 0);
    assert.deepEqual(calls, ['called']);
  });

  test('a stream may be closed twice, and refuses use afterwards', () => {
    const stream = Stream.create();
    stream.close();
    stream.close();
    assert.equal(stream.closed, true);
    assert.throws(() => stream.done, { name: 'ClosedError', message: /this Stream is closed/ });
    assert.throws(() => stream.synchronizeSync(), { name: 'ClosedError' });
  });

  test('closing a stream that is held up returns at once, and its work is still done', async () => {
    using buffer = DeviceBuffer.allocate(64);
    buffer.fill(1);
    const context = Context.primary();
    await context.synchronize();
    const latch = new Latch();
    const stream = Stream.create({ nonBlocking: true });
    latch.hold(stream);
    buffer.fill(2, { stream });
    stream.close();
    assert.deepEqual(new Set(await buffer.copyToHost()), new Set([1]));
    latch.open();
    await context.flush();
    assert.deepEqual(new Set(buffer.copyToHostSync()), new Set([2]));
    latch[Symbol.dispose]();
  });

  test('invalid options are refused with an explanation', () => {
    assert.throws(
      () => Stream.create({ prio: 1 } as never),
      /unknown option 'prio' \(did you mean 'priority'\?\); known: context/,
    );
    assert.throws(() => Stream.create({ priority: 0.5 }), RangeError);
    assert.throws(() => Stream.create({ nonBlocking: 1 as never }), TypeError);
    assert.throws(() => Stream.create({ device: 99 }), /no device 99/);
  });
});

describe('waits that sleep', () => {
  test('500 waits for a stream end when its work is done, and not before', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(1024);
    using latch = new Latch();
    buffer.fill(1, { stream });
    await stream.synchronize();
    latch.hold(stream);
    buffer.fill(2, { stream });
    let ended = 0;
    const waiting = Array.from({ length: 500 }, async () => {
      await stream.synchronize();
      ended += 1;
    });
    await turns();
    assert.equal(ended, 0);
    latch.open();
    await Promise.all(waiting);
    assert.equal(stream.done, true);
  });

  test('waits for several streams and events end each when its own work is done', async () => {
    using latches = {
      first: new Latch(),
      second: new Latch(),
      [Symbol.dispose]() {
        this.first[Symbol.dispose]();
        this.second[Symbol.dispose]();
      },
    };
    using first = Stream.create({ nonBlocking: true });
    using second = Stream.create({ nonBlocking: true });
    using event = CudaEvent.create();
    const { first: one, second: two } = latches;
    one.hold(first);
    two.hold(second);
    event.record(second);
    const ended: string[] = [];
    const note = async (name: string, wait: Promise<void>): Promise<void> => {
      await wait;
      ended.push(name);
    };
    const waits = [
      note('first', first.synchronize()),
      note('second', second.synchronize()),
      note('event', event.synchronize()),
    ];
    await turns();
    assert.deepEqual(ended, []);
    two.open();
    await Promise.all(waits.slice(1));
    assert.deepEqual(ended.sort(), ['event', 'second']);
    one.open();
    await Promise.all(waits);
    assert.equal(first.done, true);
  });

  test('work that is queued while a wait sleeps is waited for, too', async () => {
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(1024);
    using first = new Latch();
    using second = new Latch();
    first.hold(stream);
    let isDone = false;
    const waiting = stream.synchronize().then(() => {
      isDone = true;
    });
    await turns();
    second.hold(stream);
    buffer.fill(3, { stream });
    first.open();
    await turns();
    assert.equal(isDone, false);
    second.open();
    await waiting;
    assert.equal(stream.done, true);
  });
});
