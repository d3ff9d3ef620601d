/** Two ends of a timeline in one process, which has two mappings of the page. */

import assert from 'node:assert/strict';
import { afterEach, describe, test } from 'node:test';
import { deviceAttributes } from '../../../../../ffi/attributes.ts';
import { CU_STREAM_LEGACY } from '../../../../../ffi/constants.ts';
import { recordCalls, selectDriver } from '../../../../../ffi/driver.ts';
import type { Driver } from '../../../../../ffi/functions.ts';
import { closeFd, duplicateFd, isOpenFd, libc, mapShared } from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import { Context, DeviceBuffer, Stream } from '../../../../../src/index.ts';
import { COUNTER_COUNT } from '../../../../../src/ipc/protocol.ts';
import {
  ConnectionTimeline,
  Signaler,
  StreamCounters,
} from '../../../../../src/ipc/timeline/connection-timeline.ts';
import { SharedWords } from '../../../../../src/ipc/timeline/words.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { withTable } from '../../../../../src/waits/worker-tables.ts';
import { broken, keepingBooks } from '../../../../support/faults.ts';
import { until } from '../../../../support/iterations.ts';
import { Latch } from '../../../../support/latch.ts';
import {
  collectGarbage,
  openDescriptors,
  processState,
  replaceLibc,
} from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';
import { pageFd, receivePage, resetLost } from './support.ts';

// What the first wait leaves for all later ones.
withTable('waits', () => {});

const pointOf = (index: number, count = 1) => ({ index, count });

const opened: Signaler[] = [];
afterEach(() => {
  for (const signals of opened.splice(0)) signals.close();
});

function ends() {
  const signals = new Signaler(SharedWords.create('points'));
  opened.push(signals);
  return { signals, ...receivePage(signals.words.copyFd()) };
}

describe('ConnectionTimeline', () => {
  test('a stream waits for a stream of the peer, and no host does', async () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(driver);
    const context = Context.primary();
    processState();
    const before = processState().mappings;
    const { signals, page, waits } = ends();
    {
      using latch = new Latch();
      using producer = Stream.create({ nonBlocking: true });
      using consumer = Stream.create({ nonBlocking: true });
      assert.deepEqual(signals.pointsBehindStream(producer), []);
      assert.deepEqual(signals.pointsBehindContext(context), []);
      latch.hold(producer);
      const points = signals.pointsBehindStream(producer);
      assert.equal(points.length, 1);
      assert.equal(waits.isReached(points), false);
      assert.equal(waits.wait(points, context, consumer), true);
      assert.equal(consumer.done, false);
      latch.open();
      await consumer.synchronize();
      assert.equal(waits.isReached(points), true);
    }
    signals.close();
    page.close();
    await context.flush();
    assert.equal(processState().mappings, before);
    assert.deepEqual(
      [...open].filter((what) => what.startsWith('cuMemHostRegister')),
      [],
    );
  });

  test('all known work is waited for: of own, default, borrowed and late streams', async () => {
    emulate();
    const context = Context.primary();
    const { signals, page, waits } = ends();
    using latch = new Latch();
    using own = Stream.create({ nonBlocking: true });
    using borrowed = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(64);
    latch.hold(own);
    latch.hold(Stream.legacyDefault());
    latch.hold(Stream.fromHandle(borrowed.handle));
    latch.hold(Stream.perThreadDefault());
    buffer.fill(1);
    const points = signals.pointsBehindContext(context);
    // The own stream, the borrowed one, the per-thread one, and the one that joins the events.
    assert.equal(points.length, 4);
    assert.equal(new Set(points.map(({ index }) => index)).size, 4);
    for (const stream of [Stream.fromHandle(borrowed.handle), Stream.legacyDefault()])
      points.push(...signals.pointsBehindStream(stream));
    assert.equal(
      points.some((point) => page.isReached(point)),
      false,
    );
    latch.open();
    await context.synchronize();
    assert.equal(waits.isReached(points), true);
    signals.close();
    page.close();
  });

  test('work of another context on the memory of a context is waited for with it', async () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const [context, other] = [Context.primary(0), Context.primary(1)];
    const { signals, page, waits } = ends();
    using latch = new Latch(other);
    using visiting = Stream.create({ device: 1, nonBlocking: true });
    latch.hold(visiting);
    assert.deepEqual(signals.pointsBehindContext(context), []);
    context.workTracker.addOtherContext(other.workTracker);
    const points = signals.pointsBehindContext(context);
    assert.equal(points.length, 1);
    for (let turn = 0; turn < 5; turn++) await nextLoopIteration();
    assert.equal(waits.isReached(points), false);
    latch.open();
    await other.synchronize();
    while (!waits.isReached(points)) await nextLoopIteration();
    signals.close();
    page.close();
  });

  test('the hosts advance the counters if a device refuses: slower, never wrong', async () => {
    for (const name of ['cuMemHostRegister_v2', 'cuStreamWriteValue64_v2'] as const) {
      const emulated = emulate();
      using latch = new Latch();
      using stream = Stream.create({ nonBlocking: true });
      latch.hold(stream);
      selectDriver(broken(emulated, name, CUresult.CUDA_ERROR_NOT_SUPPORTED));
      const { signals, page, waits } = ends();
      const context = stream.context;
      const points = [
        ...signals.pointsBehindStream(stream),
        ...signals.pointsBehindContext(context),
      ];
      assert.equal(points.length, 2);
      assert.equal(waits.wait(points, context, undefined), name === 'cuStreamWriteValue64_v2');
      await nextLoopIteration();
      assert.equal(waits.isReached(points), false);
      signals.close();
      latch.open();
      await until(() => waits.isReached(points));
      page.close();
    }
  });

  test('a survivor releases its streams, and counts the points that were never reached', async () => {
    emulate();
    const { page, waits } = ends();
    using stream = Stream.create({ nonBlocking: true });
    waits.wait([{ index: 3, count: 2 }], stream.context, stream);
    waits.wait(
      [
        { index: 3, count: 5 },
        { index: 4, count: 1 },
      ],
      stream.context,
      stream,
    );
    assert.equal(stream.done, false);
    assert.equal(waits.abandonWaits(), 2);
    await stream.synchronize();
    assert.equal(waits.abandonWaits(), 0);
    page.close();
  });

  test('a survivor releases the stream that waits for the latest point, even if another asked last', async () => {
    emulate();
    for (const order of [
      [5, 2],
      [2, 5],
    ]) {
      const { page, waits } = ends();
      const streams = order.map((count) => {
        const stream = Stream.create({ nonBlocking: true });
        assert.equal(waits.wait([{ index: 3, count }], stream.context, stream), true);
        return stream;
      });
      assert.ok(streams.every(({ done }) => !done));
      // Both are waits for one counter: count 5 includes count 2.
      assert.equal(waits.abandonWaits(), 1);
      assert.deepEqual(
        streams.map(({ done }) => done),
        [true, true],
      );
      for (const stream of streams) stream.close();
      page.close();
    }
  });

  test('points behind a stream that is full, or behind its context, come from the host', async () => {
    emulate();
    const { page, signals, waits } = ends();
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(16);
    const { context } = stream;
    waits.wait([{ index: 9, count: 1 }], context, stream);
    for (let n = 0; n < 958; n += 1) buffer.fill(1, { stream });
    using recorder = recordCalls();
    const writes = (): number =>
      recorder.calls.filter(({ name }) => name.startsWith('cuStreamWriteValue')).length;
    const last = signals.pointsBehindStream(stream);
    assert.deepEqual([last.length, writes()], [1, 1]);
    // The driver would block at the 61st of these.
    const points = Array.from({ length: 70 }, () => [
      ...signals.pointsBehindStream(stream),
      ...signals.pointsBehindContext(context),
    ]).flat();
    assert.deepEqual([points.length, writes()], [140, 1]);
    assert.equal(
      points.some((point) => page.isReached(point)),
      false,
    );
    page.advanceTo({ index: 9, count: 1 });
    await until(() => points.every((point) => page.isReached(point)));
    page.close();
    signals.close();
  });

  const waitCalls = (calls: readonly { readonly name: string }[]): number =>
    calls.filter(({ name }) => name.startsWith('cuStreamWaitValue')).length;

  test('a stream waits only once for the same count of a counter', async () => {
    emulate();
    const { page, waits } = ends();
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    const { context } = stream;
    using recorder = recordCalls();
    const wait = (counts: readonly number[], within: Stream | undefined): number => {
      const before = waitCalls(recorder.calls);
      const points = counts.map((count) => ({ index: 9, count }));
      assert.equal(waits.wait(points, context, within), true);
      return waitCalls(recorder.calls) - before;
    };
    assert.deepEqual([wait([1, 4, 5, 2], stream), wait([5], stream), wait([3], stream)], [1, 0, 0]);
    assert.deepEqual([wait([6], stream), wait([6], other)], [1, 1]);
    // The legacy default stream, under both of its names.
    assert.deepEqual([wait([6], undefined), wait([6], Stream.legacyDefault())], [1, 0]);
    page.advanceTo({ index: 9, count: 6 });
    await context.synchronize();
    page.close();
  });

  test('a stream has a bounded number of waits until they have run', async () => {
    emulate();
    const { page, waits } = ends();
    using stream = Stream.create({ nonBlocking: true });
    const { context } = stream;
    using recorder = recordCalls();
    // More at once than the limit: none is queued.
    const many = Array.from({ length: 500 }, (_, index) => ({ index, count: 1 }));
    assert.equal(waits.wait(many, context, stream), false);
    assert.equal(waitCalls(recorder.calls), 0);
    for (let round = 0; round < 3; round++) {
      using latch = new Latch();
      latch.hold(stream);
      const before = waitCalls(recorder.calls);
      let queued = 0;
      for (let n = 0; n < 500; n++) {
        const point = { index: round, count: n + 1 };
        if (waits.wait([point], context, stream)) queued += 1;
        // The awaited work is done, but other work still blocks the stream.
        page.advanceTo(point);
      }
      assert.ok(queued >= 160 && queued <= 320, `${queued} were queued`);
      assert.equal(waitCalls(recorder.calls) - before, queued);
      latch.open();
      await stream.synchronize();
    }
    page.close();
  });

  test('the streams of a context have a bounded number of waits together', async () => {
    emulate();
    const { page, waits } = ends();
    using first = Stream.create({ nonBlocking: true });
    using second = Stream.create({ nonBlocking: true });
    using recorder = recordCalls();
    const fill = (stream: Stream): void => {
      for (let index = 0; index < 500; index++)
        waits.wait([{ index, count: 1 }], stream.context, stream);
    };
    fill(first);
    fill(second);
    assert.equal(waitCalls(recorder.calls), 512);
    for (let index = 0; index < 500; index++) page.advanceTo({ index, count: 1 });
    await first.synchronize();
    await second.synchronize();
    assert.equal(waits.wait([{ index: 0, count: 2 }], second.context, second), true);
    page.advanceTo({ index: 0, count: 2 });
    await second.synchronize();
    page.close();
  });

  test('the waits of a stream that makes progress are never left to the host', async () => {
    emulate();
    const { page, waits } = ends();
    using stream = Stream.create({ nonBlocking: true });
    for (let count = 1; count <= 1000; count++) {
      assert.equal(waits.wait([{ index: 0, count }], stream.context, stream), true);
      page.advanceTo({ index: 0, count });
      if (count % 100 === 0) await stream.synchronize();
    }
    page.close();
  });

  for (const [connections, most] of [
    [undefined, 6],
    ['4', 2],
    ['2', 0],
    ['1', 0],
    ['32', 10],
    ['none', 6],
  ] as const)
    test(`${most} streams wait at a time if there are ${connections ?? 'the default number of'} queues`, async () => {
      emulate();
      const name = 'CUDA_DEVICE_MAX_CONNECTIONS';
      if (connections) process.env[name] = connections;
      try {
        const { page, waits } = ends();
        const streams = Array.from({ length: 10 }, () => Stream.create({ nonBlocking: true }));
        const wait = (stream: Stream, at: number): boolean =>
          waits.wait([{ index: at, count: 1 }], stream.context, stream);
        assert.equal(streams.filter(wait).length, most);
        if (most === 0 || most === streams.length) {
          waits.abandonWaits();
          page.close();
          for (const stream of streams) stream.close();
          return;
        }
        // A stream that already waits may wait for more.
        const [first, ...others] = streams as [Stream, ...Stream[]];
        assert.equal(wait(first, 11), true);
        for (const index of [0, 11]) page.advanceTo({ index, count: 1 });
        assert.equal(
          others.filter((stream, at) => !stream.done || wait(stream, at + 1)).length,
          most,
        );
        waits.abandonWaits();
        for (const stream of streams) {
          await stream.synchronize();
          stream.close();
        }
        page.close();
      } finally {
        delete process.env[name];
      }
    });

  /** A driver whose streams write and wait for 32 bits only. */
  function narrow(emulated: Driver): Driver {
    const { canUse64BitStreamMemOps, canUse64BitStreamMemOpsV1 } = deviceAttributes;
    return {
      ...emulated,
      cuDeviceGetAttribute: (value, attribute, device) =>
        emulated.cuDeviceGetAttribute(
          value,
          attribute === canUse64BitStreamMemOps ? canUse64BitStreamMemOpsV1 : attribute,
          device,
        ),
    };
  }

  test('the hosts order work if a device has no 64-bit operations', async () => {
    selectDriver(narrow(emulate()));
    const { signals, page, waits } = ends();
    using producer = Stream.create({ nonBlocking: true });
    using consumer = Stream.create({ nonBlocking: true });
    const { context } = producer;
    using latch = new Latch();
    latch.hold(producer);
    using recorder = recordCalls();
    const points = [
      ...signals.pointsBehindStream(producer),
      ...signals.pointsBehindContext(context),
    ];
    assert.equal(points.length, 2);
    assert.deepEqual(
      [waits.canWait(context), waits.wait(points, context, consumer)],
      [false, false],
    );
    assert.equal(waits.isReached(points), false);
    latch.open();
    await until(() => waits.isReached(points));
    assert.equal(waits.wait(points, context, consumer), true);
    assert.equal(
      recorder.calls.some(({ name }) => /^cuStream(Write|Wait)Value/.test(name)),
      false,
    );
    page.close();
  });

  test('a store that the driver refuses leaves nothing pending', async () => {
    const emulated = emulate();
    const { signals, page, waits } = ends();
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    selectDriver(broken(emulated, 'cuStreamWriteValue64_v2', CUresult.CUDA_ERROR_NOT_SUPPORTED));
    const points = [
      ...signals.pointsBehindStream(stream),
      ...signals.pointsBehindContext(stream.context),
    ];
    assert.equal(signals.isPending, true);
    latch.open();
    await until(() => waits.isReached(points));
    assert.equal(signals.isPending, false);
    page.close();
  });

  test('a survivor releases its streams, whatever is left in the counters', {
    timeout: 30_000,
  }, async () => {
    // The counts that are awaited, each while the counter has another value, and the value that is
    // left.
    const left: readonly (readonly [readonly (readonly [bigint, number])[], bigint])[] = [
      // So far apart that a cyclic comparison of 32 bits finds one before the other.
      [
        [
          [2n ** 31n, 2 ** 31 + 10],
          [0n, 5],
        ],
        0n,
      ],
      [
        [
          [0n, 5],
          [2n ** 31n, 2 ** 31 + 10],
        ],
        0n,
      ],
      // Reached by the low half of the counter alone.
      [[[0n, 2 ** 32 + 1]], 1n],
      [[[0n, 5]], 0xffff_ffff_0000_0005n],
      [
        [
          [0n, 1],
          [0xffff_ffffn, 2 ** 52],
        ],
        2n ** 63n - 1n,
      ],
    ];
    emulate();
    for (const [asked, word] of left) {
      const fd = createSealedMemfd('points', 4096);
      const theirs = mapShared(fd, 4096);
      const { page, waits } = receivePage(fd);
      using stream = Stream.create({ nonBlocking: true });
      const words = new BigUint64Array(theirs.view());
      for (const [before, count] of asked) {
        words[2] = before;
        assert.equal(waits.wait([{ index: 2, count }], stream.context, stream), true);
      }
      words[2] = word;
      waits.abandonWaits();
      await stream.synchronize();
      theirs.unmap();
      page.close();
    }
  });

  test('more streams than a page has counters still signal, behind their work', async () => {
    emulate();
    const { signals, page, waits } = ends();
    const context = Context.primary();
    using latch = new Latch();
    const streams = Array.from({ length: COUNTER_COUNT + 1 }, () =>
      Stream.create({ nonBlocking: true }),
    );
    for (const stream of streams) latch.hold(stream);
    const points = streams.flatMap((stream) => signals.pointsBehindStream(stream));
    assert.equal(points.length, streams.length);
    // At most as many as a message may have: one for each counter.
    const all = signals.pointsBehindContext(context);
    assert.equal(new Set(all.map(({ index }) => index)).size, all.length);
    points.push(...all);
    await nextLoopIteration();
    assert.equal(
      points.some((point) => page.isReached(point)),
      false,
    );
    latch.open();
    await context.synchronize();
    await until(() => waits.isReached(points));
    for (const stream of streams) stream.close();
    signals.close();
    page.close();
  });

  test('a received page can no longer be resized by its sender, and still works', async () => {
    emulate();
    const mappings = () => processState().mappings;
    const before = mappings();
    const fd = createSealedMemfd('points', 4096);
    const theirs = mapShared(fd, 4096);
    const { page, waits } = receivePage(duplicateFd(fd));
    using stream = Stream.create({ nonBlocking: true });
    assert.equal(waits.wait([{ index: 0, count: 1 }], stream.context, stream), true);
    assert.ok(libc.fallocate(fd, 3, 0, 4096) < 0);
    assert.ok(libc.madvise(theirs.address, 4096, 9) < 0);
    assert.ok(libc.ftruncate(fd, 0) < 0);
    assert.throws(() => mapShared(fd, 4096), { code: 'EPERM' });
    assert.equal(stream.done, false);
    new BigUint64Array(theirs.view())[0] = 1n;
    await stream.synchronize();
    theirs.unmap();
    closeFd(fd);
    page.close();
    await stream.context.flush();
    assert.equal(mappings(), before);
  });

  test("the host waits, and no stream, if the kernel cannot fix a page's memory", () => {
    emulate();
    const { fcntl } = libc;
    replaceLibc('fcntl', (fd, command, seals) =>
      fcntl(fd, command, seals === 16 ? 1 << 20 : seals),
    );
    const { page, waits } = ends();
    replaceLibc('fcntl', fcntl);
    using stream = Stream.create({ nonBlocking: true });
    assert.equal(waits.wait([{ index: 0, count: 1 }], stream.context, stream), false);
    assert.equal(stream.done, true);
    page.close();
  });

  test('a counter goes to another stream when its stream is gone and its last count is reached', () => {
    const words = SharedWords.create('points');
    const counters = new StreamCounters(words);
    let isOver = false;
    const taken = Array.from({ length: COUNTER_COUNT }, () => counters.allocate(() => isOver));
    assert.equal(new Set(taken.map((counter) => counter?.index)).size, COUNTER_COUNT);
    assert.equal(
      counters.allocate(() => false),
      undefined,
    );
    const [first] = taken as [NonNullable<(typeof taken)[0]>];
    first.count = 1;
    isOver = true;
    assert.equal(counters.allocate(() => false)?.index, 1);
    words.advanceTo(first);
    const again = counters.allocate(() => false);
    assert.deepEqual([again?.index, again?.count], [0, 1]);
    words.close();
  });

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

  /**
   * One more than the number of streams of a context that may wait. The last streams are checked
   * late.
   */
  const KEPT = 8;

  test('the waits of ended connections are kept alive by nothing', async () => {
    emulate();
    const context = Context.primary();
    const { accept } = SharedWords;
    // A function of its own, because its variables would otherwise live as long as the test.
    const endOne = (): WeakRef<SharedWords> => {
      let page: WeakRef<SharedWords> | undefined;
      SharedWords.accept = (...given) => {
        const accepted = accept.apply(SharedWords, given);
        page = new WeakRef(accepted);
        return accepted;
      };
      const ordering = new ConnectionTimeline();
      ordering.acceptPage(pageFd());
      SharedWords.accept = accept;
      using stream = Stream.create({ nonBlocking: true });
      assert.equal(ordering.wait([pointOf(0)], context, stream), true);
      assert.equal(ordering.abandonWaits(), 1);
      stream.synchronizeSync();
      ordering.close(() => {});
      return page as unknown as WeakRef<SharedWords>;
    };
    const pages = Array.from({ length: 3 * KEPT }, endOne);
    await context.flush();
    await collectGarbage();
    const kept = pages.filter((page) => page.deref() !== undefined).length;
    assert.ok(kept <= KEPT, `${kept} are kept`);
  });

  test('the counters of a context are reached after a reset has ended its work', () => {
    emulate({ CUFFI_EMULATED_DEVICES: '2' });
    const contexts = [Context.primary(0), Context.primary(1)] as const;
    const page = SharedWords.create('points');
    const counters = new StreamCounters(page);
    const points = contexts.map((context) => {
      const counter = counters.ofHandle(context, CU_STREAM_LEGACY);
      assert.ok(counter);
      counter.count += 1;
      return { index: counter.index, count: counter.count };
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
    const page = SharedWords.create('points');
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
    const signals = new Signaler(SharedWords.create('points'));
    const [point] = signals.pointsBehindStream(stream);
    assert.ok(point);
    const theirs = SharedWords.accept(signals.words.copyFd(), 'page');
    signals.close();
    assert.deepEqual([signals.words.isUnmapped, theirs.isReached(point)], [false, false]);
    latch.open();
    await stream.synchronize();
    await until(() => signals.words.isUnmapped);
    assert.equal(theirs.isReached(point), true);
    theirs.close();
  });

  test('a stream waits again after a reset for what it waited for before', () => {
    const emulated = emulate();
    const context = Context.primary();
    const { page, waits } = receivePage(pageFd());
    using recorder = recordCalls();
    const wait = (index: number, stream?: Stream): number => {
      const before = recorder.calls.length;
      waits.wait([pointOf(index)], context, stream);
      return recorder.calls.slice(before).filter(({ name }) => name.startsWith('cuStreamWaitValue'))
        .length;
    };
    assert.deepEqual([wait(0), wait(0)], [1, 0]);
    resetLost(context, emulated);
    assert.deepEqual([wait(0), wait(0)], [1, 0]);
    waits.abandonWaits();
    page.close();
  });

  test('waits behind which no event can be recorded count until the stream is done', () => {
    const { driver, open } = keepingBooks(emulate());
    selectDriver(broken(driver, 'cuEventRecord', CUresult.CUDA_ERROR_INVALID_VALUE));
    const { page, waits } = receivePage(pageFd());
    const stream = Stream.create({ nonBlocking: true });
    const events = (): string[] => [...open].filter((what) => what.startsWith('cuEventCreate'));
    const before = events();
    // So many that the finished waits are counted.
    const many = Array.from({ length: 200 }, (_, index) => pointOf(index));
    const more = Array.from({ length: 200 }, (_, index) => pointOf(index, 2));
    using recorder = recordCalls();
    assert.equal(waits.wait(many, stream.context, stream), true);
    assert.ok(recorder.calls.some(({ name }) => name === 'cuEventRecord'));
    assert.equal(waits.wait(more, stream.context, stream), false);
    // It is kept for the next.
    assert.ok(events().length <= before.length + 1);
    assert.equal(waits.abandonWaits(), 200);
    stream.synchronizeSync();
    selectDriver(driver);
    stream.close();
    page.close();
  });
});
