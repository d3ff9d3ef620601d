import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { recordCalls, selectDriver } from '../../../../../ffi/driver.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import { DeviceBuffer, Stream } from '../../../../../src/index.ts';
import { Ring } from '../../../../../src/ipc/channel/ring.ts';
import { Timeline } from '../../../../../src/ipc/index.ts';
import { HostStores, TrackedStores } from '../../../../../src/ipc/timeline/stores.ts';
import { blockUntil } from '../../../../../src/waits/waiting-streams.ts';
import { losing } from '../../../../support/faults.ts';
import { until } from '../../../../support/iterations.ts';
import { Latch } from '../../../../support/latch.ts';
import { leaves } from '../../../../support/left-open.ts';
import { emulate } from '../../emulate.ts';

/** A tracker over the words of a ring, and what it has reported. */
function tracker({ isAwaited = false, isLazy = false } = {}): {
  readonly ring: Ring;
  readonly stores: TrackedStores;
  readonly reports: unknown[];
} {
  const ring = Ring.create({ slots: 4, hasRecords: false });
  const reports: unknown[] = [];
  const stores = new TrackedStores(ring.words, {
    onStored: (error) => reports.push(error),
    isAwaited: () => isAwaited,
    isLazy,
  });
  return { ring, stores, reports };
}

describe('HostStores', () => {
  test('stores each word in order, and no word behind another one', async () => {
    const stored: string[] = [];
    const stores = new HostStores();
    const done = new Set<string>();
    const add = (index: number, name: string): void =>
      stores.add(index, {
        isDone: () => done.has(name),
        store: () => stored.push(name),
        onOver: (error) => assert.equal(error, undefined),
      });
    add(0, 'first');
    add(0, 'second');
    add(1, 'other');
    done.add('second');
    stores.poll();
    assert.deepEqual(stored, []);
    done.add('other');
    stores.poll();
    assert.deepEqual([stored, stores.isPending], [['other'], true]);
    done.add('first');
    await until(() => !stores.isPending);
    assert.deepEqual(stored, ['other', 'first', 'second']);
  });

  test('stores each once, though its report polls again and adds the next', async () => {
    const stored: string[] = [];
    const stores = new HostStores();
    const add = (name: string, onOver: () => void): void =>
      stores.add(0, { isDone: () => true, store: () => stored.push(name), onOver });
    add('first', () => {
      add('second', () => {});
      stores.poll();
    });
    await until(() => !stores.isPending);
    assert.deepEqual(stored, ['first', 'second']);
  });

  test('stores nothing behind work that was lost, and goes on with what follows', async () => {
    const over: unknown[] = [];
    const stores = new HostStores();
    const lost = new Error('lost');
    for (const error of [lost, undefined])
      stores.add(0, {
        isDone() {
          if (error) throw error;
          return true;
        },
        store: () => over.push('stored'),
        onOver: (reason) => over.push(reason),
      });
    await until(() => !stores.isPending);
    assert.deepEqual(over, [lost, 'stored', undefined]);
  });
});

describe('TrackedStores', () => {
  test('reports a store when it is done, whether somebody sleeps or not', async () => {
    emulate();
    for (const isAwaited of [false, true])
      for (const isLazy of [false, true]) {
        const { ring, stores, reports } = tracker({ isAwaited, isLazy });
        using stream = Stream.create({ nonBlocking: true });
        using latch = new Latch();
        latch.hold(stream);
        stores.store(ring.filled(0), stream.context, stream);
        await setTimeout(5);
        assert.deepEqual([ring.isFilled(0), reports], [false, []]);
        latch.open();
        await until(() => reports.length > 0);
        assert.deepEqual([ring.isFilled(0), reports], [true, [undefined]]);
        ring.words.close();
      }
  });

  test('reports a store when others can see it, however it is done', async () => {
    emulate();
    using idle = Stream.create({ nonBlocking: true });
    using busy = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    for (const stream of [idle, undefined, busy]) {
      const ring = Ring.create({ slots: 4, hasRecords: false });
      const seen: boolean[] = [];
      const stores = new TrackedStores(ring.words, {
        onStored: () => seen.push(ring.isFilled(0)),
        isAwaited: () => true,
        isLazy: false,
      });
      if (stream === busy) latch.hold(busy);
      stores.store(ring.filled(0), idle.context, stream);
      latch.open();
      await until(() => seen.length > 0);
      assert.deepEqual(seen, [true]);
      ring.words.close();
    }
  });

  test('lets the host store at once what follows no work, and tells the driver nothing', () => {
    emulate();
    const { ring, stores, reports } = tracker();
    using stream = Stream.create({ nonBlocking: true });
    const recorder = recordCalls();
    stores.store(ring.filled(0), stream.context, stream);
    recorder.stop();
    assert.deepEqual(
      recorder.calls.map(({ name }) => name),
      ['cuStreamQuery'],
    );
    assert.deepEqual([ring.isFilled(0), reports], [true, [undefined]]);
    ring.words.close();
  });

  test('if it is lazy, reports the last of many stores', async () => {
    emulate();
    const { ring, stores, reports } = tracker({ isAwaited: true, isLazy: true });
    using stream = Stream.create({ nonBlocking: true });
    using first = new Latch();
    using last = new Latch();
    first.hold(stream);
    stores.store(ring.filled(0), stream.context, stream);
    stores.store(ring.filled(1), stream.context, stream);
    last.hold(stream);
    stores.store(ring.filled(2), stream.context, stream);
    first.open();
    await until(() => reports.length === 1);
    assert.equal(ring.isFilled(2), false);
    last.open();
    await until(() => reports.length === 2);
    assert.equal(ring.isFilled(2), true);
    ring.words.close();
  });

  test('if it is lazy, reports the last store of each stream', async () => {
    emulate();
    const { ring, stores, reports } = tracker({ isAwaited: true, isLazy: true });
    using one = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    using first = new Latch();
    using last = new Latch();
    using beside = new Latch();
    first.hold(one);
    stores.store(ring.filled(0), one.context, one);
    last.hold(one);
    stores.store(ring.filled(1), one.context, one);
    beside.hold(other);
    stores.store(ring.filled(2), other.context, other);
    beside.open();
    await until(() => reports.length === 1);
    first.open();
    await until(() => reports.length === 2);
    assert.deepEqual([ring.isFilled(2), ring.isFilled(1)], [true, false]);
    last.open();
    await until(() => reports.length === 3);
    assert.equal(ring.isFilled(1), true);
    ring.words.close();
  });

  test('stores behind the work of a stream that is closed meanwhile, own or borrowed', async () => {
    for (const isLazy of [false, true])
      for (const isBorrowed of [false, true]) {
        emulate();
        const { ring, stores, reports } = tracker({ isLazy });
        using own = Stream.create({ nonBlocking: true });
        const stream = isBorrowed ? Stream.fromHandle(own.handle) : own;
        using latch = new Latch();
        using last = new Latch();
        latch.hold(stream);
        stores.store(ring.filled(0), stream.context, stream);
        last.hold(stream);
        stores.store(ring.filled(1), stream.context, stream);
        stream.close();
        // For longer than it polls.
        await setTimeout(150);
        assert.deepEqual([ring.isFilled(0), ring.isFilled(1), reports], [false, false, []]);
        latch.open();
        await until(() => reports.length > 0);
        await setTimeout(150);
        assert.deepEqual([ring.isFilled(0), ring.isFilled(1), reports.length], [true, false, 1]);
        last.open();
        await until(() => reports.length === 2);
        assert.equal(ring.isFilled(1), true);
        ring.words.close();
      }
  });

  test('lets the host store what the device did not, once the work is done', async () => {
    for (const isClosed of [false, true]) {
      selectDriver({ ...emulate(), cuStreamWriteValue64_v2: () => CUresult.CUDA_SUCCESS });
      const { ring, stores, reports } = tracker();
      using stream = Stream.create({ nonBlocking: true });
      using latch = new Latch();
      latch.hold(stream);
      stores.store(ring.filled(0), stream.context, stream);
      if (isClosed) stream.close();
      await setTimeout(150);
      assert.equal(ring.isFilled(0), false);
      latch.open();
      await until(() => reports.length > 0);
      assert.deepEqual([ring.isFilled(0), reports], [true, [undefined]]);
      ring.words.close();
    }
  });

  test('lets the host store what has no room behind a wait', async () => {
    emulate();
    const { ring, stores, reports } = tracker({ isAwaited: true });
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(1);
    timeline.wait(1, { stream });
    assert.throws(
      () => {
        for (;;) buffer.fill(1, { stream });
      },
      { name: 'CuffiError' },
    );
    const recorder = recordCalls();
    stores.store(ring.filled(0), stream.context, stream);
    recorder.stop();
    assert.ok(recorder.calls.every(({ name }) => !name.startsWith('cuStreamWriteValue')));
    assert.equal(ring.isFilled(0), false);
    timeline.signal(1, { stream: other });
    await until(() => reports.length > 0);
    assert.equal(ring.isFilled(0), true);
    ring.words.close();
  });

  test('lets the host store, and reports it, while a call blocks the event loop', () => {
    emulate();
    const { ring, stores, reports } = tracker({ isAwaited: true });
    using timeline = Timeline.create();
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(1);
    timeline.wait(1, { stream });
    assert.throws(
      () => {
        for (;;) buffer.fill(1, { stream });
      },
      { name: 'CuffiError' },
    );
    stores.store(ring.filled(0), stream.context, stream);
    timeline.signal(1, { stream: other });
    const until = performance.now() + 5000;
    blockUntil(() => ring.isFilled(0) || performance.now() > until);
    assert.deepEqual([ring.isFilled(0), reports], [true, [undefined]]);
    ring.words.close();
  });

  test('reports the error of a context that is lost', async () => {
    leaves(/cuffi-channel/, 'the words of a channel that is not closed', 3);
    for (const [isAwaited, isClosed] of [
      [true, false],
      [false, false],
      [false, true],
    ]) {
      const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_ILLEGAL_ADDRESS);
      selectDriver(driver);
      const { ring, stores, reports } = tracker({ isAwaited: isAwaited === true });
      using stream = Stream.create({ nonBlocking: true });
      new Latch().hold(stream);
      stores.store(ring.filled(0), stream.context, stream);
      if (isClosed) {
        stream.close();
        await setTimeout(150);
      }
      lose();
      await until(() => reports.length > 0);
      assert.equal((reports[0] as Error).name, 'CudaError');
      assert.equal(ring.isFilled(0), false);
    }
  });
});
