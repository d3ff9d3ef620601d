/**
 * What timeline pages and their waits allocate, and when it is released: at the end, and in a
 * reset.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  CU_MEMHOSTREGISTER_DEVICEMAP,
  CU_MEMHOSTREGISTER_PORTABLE,
  CU_STREAM_LEGACY,
} from '../../../../../ffi/constants.ts';
import { recordCalls, selectDriver } from '../../../../../ffi/driver.ts';
import { duplicateFd, isOpenFd, libc } from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import type { CUstream } from '../../../../../ffi/types.ts';
import { Context, Stream } from '../../../../../src/index.ts';
import { COUNTER_COUNT } from '../../../../../src/ipc/protocol.ts';
import { ConnectionTimeline } from '../../../../../src/ipc/timeline/connection-timeline.ts';
import { TimelinePage } from '../../../../../src/ipc/timeline/page.ts';
import { Signaler, StreamCounters } from '../../../../../src/ipc/timeline/signaler.ts';
import { Waiter } from '../../../../../src/ipc/timeline/waiter.ts';
import { withTable } from '../../../../../src/waits/worker-tables.ts';
import { recordCallsOf } from '../../../../support/arguments.ts';
import { broken, keepingBooks, losing } from '../../../../support/faults.ts';
import { until } from '../../../../support/iterations.ts';
import { Latch } from '../../../../support/latch.ts';
import {
  collectGarbage,
  openDescriptors,
  processState,
} from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';

// What the first wait leaves for all later ones.
withTable('waits', () => {});

/** The memory of a page, as another process sends it. */
const pageFd = (): number => createSealedMemfd('points', 4096);

const pointOf = (index: number, count = 1) => ({ index, count });

/** Whether a page is unmapped: then every point counts as reached. */
const isUnmapped = (page: TimelinePage): boolean =>
  page.isReached(pointOf(COUNTER_COUNT - 1, 2 ** 20));

/** Resets a lost context without waiting for its work, which may be blocked. */
function resetLost(context: Context, emulated: ReturnType<typeof emulate>): void {
  const { driver, lose } = losing(emulated, CUresult.CUDA_ERROR_LAUNCH_FAILED);
  selectDriver(driver);
  lose();
  context.resetSync();
  selectDriver(emulated);
}

describe('TimelinePage', () => {
  test('the end of a connection releases both pages and everything mapped from them', async () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(driver);
    const context = Context.primary();
    processState();
    for (const isSent of [true, false]) {
      using producer = Stream.create({ nonBlocking: true });
      using consumer = Stream.create({ nonBlocking: true });
      const [ours, theirs] = [new ConnectionTimeline(), new ConnectionTimeline()];
      using latch = new Latch();
      const { descriptors, mappings } = processState();
      const { size } = context.onReset;
      const held = [...open];
      latch.hold(producer);
      const points = ours.pointsBehindStream(producer);
      assert.equal(points.length, 1);
      if (isSent) {
        ours.sharePage((fd) => theirs.acceptPage(duplicateFd(fd)));
        // Sent once. After that nobody has the descriptor.
        ours.sharePage(() => assert.fail('twice'));
        assert.equal(theirs.wait(points, context, consumer), true);
        assert.equal(openDescriptors(), descriptors);
      }
      latch.open();
      await context.synchronize();
      const closed: string[] = [];
      ours.close(() => closed.push('ours'));
      theirs.close(() => closed.push('theirs'));
      await context.flush();
      assert.deepEqual(closed, ['ours', 'theirs']);
      const registered = [...open].filter((what) => what.startsWith('cuMemHostRegister'));
      assert.deepEqual(
        registered.filter((what) => !held.includes(what)),
        [],
      );
      assert.equal(context.onReset.size, size);
      const { descriptors: left, mappings: mapped } = processState();
      assert.deepEqual([left, mapped], [descriptors, mappings]);
    }
  });

  test('one page is accepted while the connection is open; others are refused and closed', () => {
    emulate();
    const before = openDescriptors();
    const ordering = new ConnectionTimeline();
    ordering.acceptPage(pageFd());
    const second = pageFd();
    const refused = { name: 'IpcError', message: 'received a second timeline page' };
    assert.throws(() => ordering.acceptPage(second), refused);
    ordering.close(() => {});
    const late = pageFd();
    assert.throws(() => ordering.acceptPage(late), refused);
    assert.equal(openDescriptors(), before);
    assert.deepEqual([second, late].map(isOpenFd), [false, false]);
  });

  test('a page that cannot be mapped leaves no descriptor, whether created or received', () => {
    emulate();
    const before = openDescriptors();
    const { mmap } = libc;
    const replace = (value: typeof mmap): void => {
      Object.defineProperty(libc, 'mmap', { configurable: true, enumerable: true, value });
    };
    const received = pageFd();
    replace((() => -1n) as never);
    try {
      assert.throws(() => TimelinePage.create(), { name: 'SystemError' });
      assert.throws(() => TimelinePage.accept(received), {
        name: 'IpcError',
        message: /cannot be mapped/,
      });
    } finally {
      replace(mmap);
    }
    assert.equal(openDescriptors(), before);
  });

  /**
   * One more than the number of streams of a context that may wait. The last streams are checked
   * late.
   */
  const KEPT = 8;

  test('the waits of ended connections are kept alive by nothing', async () => {
    emulate();
    const context = Context.primary();
    const { accept } = TimelinePage;
    // A function of its own, because its variables would otherwise live as long as the test.
    const endOne = (): WeakRef<TimelinePage> => {
      let page: WeakRef<TimelinePage> | undefined;
      TimelinePage.accept = (fd) => {
        const accepted = accept.call(TimelinePage, fd);
        page = new WeakRef(accepted);
        return accepted;
      };
      const ordering = new ConnectionTimeline();
      ordering.acceptPage(pageFd());
      TimelinePage.accept = accept;
      using stream = Stream.create({ nonBlocking: true });
      assert.equal(ordering.wait([pointOf(0)], context, stream), true);
      assert.equal(ordering.abandonWaits(), 1);
      stream.synchronizeSync();
      ordering.close(() => {});
      return page as unknown as WeakRef<TimelinePage>;
    };
    const pages = Array.from({ length: 3 * KEPT }, endOne);
    await context.flush();
    await collectGarbage();
    const kept = pages.filter((page) => page.deref() !== undefined).length;
    assert.ok(kept <= KEPT, `${kept} are kept`);
  });

  test('a page is registered once for the devices of all contexts, and again after a reset', () => {
    const emulated = emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const calls = recordCallsOf(emulated, 'cuMemHostRegister_v2', 'cuMemHostUnregister');
    const [context, other] = [Context.primary(0), Context.primary(1)];
    const page = TimelinePage.create();
    for (const each of [context, other, context, other]) page.addressIn(each, 3);
    const [[, host] = []] = calls as readonly (readonly unknown[])[];
    const registering = [
      'cuMemHostRegister_v2',
      host,
      4096,
      CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE,
    ];
    assert.deepEqual(calls, [registering]);
    context.resetSync();
    for (const each of [context, other]) page.addressIn(each, 3);
    assert.deepEqual(calls, [registering, registering]);
    // The context of the other device has nothing of it.
    other.resetSync();
    for (const each of [other, context]) page.addressIn(each, 3);
    assert.deepEqual(calls, [registering, registering]);
    page.close();
    assert.deepEqual(calls, [registering, registering, ['cuMemHostUnregister', host]]);
  });

  test('a page that waits to be closed is unmapped by a reset, which has unregistered it', () => {
    const emulated = emulate();
    const context = Context.primary();
    const page = TimelinePage.create();
    page.addressIn(context, 0);
    const before = context.onReset.size;
    let unmapped = 0;
    using recorder = recordCalls();
    {
      using _ = context.deferCleanup();
      page.close(() => {
        unmapped += 1;
      });
      assert.equal(unmapped, 0);
      resetLost(context, emulated);
    }
    assert.deepEqual([unmapped, isUnmapped(page)], [1, true]);
    context.releases.drainReady();
    assert.deepEqual([unmapped, context.onReset.size], [1, before]);
    assert.deepEqual(
      recorder.calls.filter(({ name }) => name === 'cuMemHostUnregister'),
      [],
    );
  });

  test('the counters of a context are reached after a reset has ended its work', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const contexts = [Context.primary(0), Context.primary(1)] as const;
    const page = TimelinePage.create();
    const counters = new StreamCounters(page);
    const points = contexts.map((context) => {
      const counter = counters.ofHandle(context, CU_STREAM_LEGACY as CUstream);
      assert.ok(counter);
      return StreamCounters.next(counter);
    });
    // One handle, but two streams.
    assert.notEqual(points[0]?.index, points[1]?.index);
    const reached = (): boolean[] => points.map((point) => page.isReached(point));
    assert.deepEqual([reached(), counters.isPending], [[false, false], true]);
    contexts[1].resetSync();
    assert.deepEqual([reached(), counters.isPending], [[false, true], true]);
    contexts[0].resetSync();
    assert.deepEqual([reached(), counters.isPending], [[true, true], false]);
    counters.end();
    page.close();
  });

  test('the counters of closed streams go to other streams', async () => {
    emulate();
    const context = Context.primary();
    const page = TimelinePage.create();
    const counters = new StreamCounters(page);
    const create = (): Stream => Stream.create({ nonBlocking: true });
    const take = ({ handle }: Stream): number | undefined =>
      counters.ofHandle(context, handle)?.index;
    const streams = Array.from({ length: COUNTER_COUNT }, create);
    assert.equal(new Set(streams.map(take)).size, COUNTER_COUNT);
    using last = create();
    assert.equal(take(last), undefined);
    const [first, second] = streams as [Stream, Stream];
    const taken = take(second);
    second.close();
    await context.flush();
    assert.equal(take(last), taken);
    assert.equal(take(first), 0);
    for (const stream of streams) stream.close();
    counters.end();
    page.close();
  });

  test('a page with signals pending is closed after they are sent', async () => {
    const emulated = emulate();
    using latch = new Latch();
    using stream = Stream.create({ nonBlocking: true });
    latch.hold(stream);
    selectDriver(broken(emulated, 'cuStreamWriteValue64_v2', CUresult.CUDA_ERROR_NOT_SUPPORTED));
    const signals = new Signaler(TimelinePage.create());
    const [point] = signals.pointsBehindStream(stream);
    assert.ok(point);
    let theirs: TimelinePage | undefined;
    signals.page.shareFd((fd) => {
      theirs = TimelinePage.accept(duplicateFd(fd));
    });
    signals.close();
    assert.deepEqual([isUnmapped(signals.page), theirs?.isReached(point)], [false, false]);
    latch.open();
    await stream.synchronize();
    await until(() => isUnmapped(signals.page));
    assert.equal(theirs?.isReached(point), true);
    theirs?.close();
  });

  test('a stream waits again after a reset for what it waited for before', () => {
    const emulated = emulate();
    const context = Context.primary();
    const page = TimelinePage.accept(pageFd());
    const waits = new Waiter(page);
    using recorder = recordCalls();
    const wait = (index: number, stream?: Stream): number => {
      const before = recorder.calls.length;
      waits.enqueueWaits([pointOf(index)], context, stream);
      return recorder.calls.slice(before).filter(({ name }) => name.startsWith('cuStreamWaitValue'))
        .length;
    };
    assert.deepEqual([wait(0), wait(0)], [1, 0]);
    resetLost(context, emulated);
    assert.deepEqual([wait(0), wait(0)], [1, 0]);
    waits.abandon();
    page.close();
  });

  test('waits behind which no event can be recorded count until the stream is done', () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(broken(driver, 'cuEventRecord', CUresult.CUDA_ERROR_INVALID_VALUE));
    const page = TimelinePage.accept(pageFd());
    const waits = new Waiter(page);
    const stream = Stream.create({ nonBlocking: true });
    const events = (): string[] => [...open].filter((what) => what.startsWith('cuEventCreate'));
    const before = events();
    // So many that the finished waits are counted.
    const many = Array.from({ length: 200 }, (_, index) => pointOf(index));
    const more = Array.from({ length: 200 }, (_, index) => pointOf(index, 2));
    using recorder = recordCalls();
    assert.equal(waits.enqueueWaits(many, stream.context, stream), true);
    assert.ok(recorder.calls.some(({ name }) => name === 'cuEventRecord'));
    assert.equal(waits.enqueueWaits(more, stream.context, stream), false);
    // It is kept for the next.
    assert.ok(events().length <= before.length + 1);
    assert.equal(waits.abandon(), 200);
    stream.synchronizeSync();
    selectDriver(driver);
    stream.close();
    page.close();
  });
});
