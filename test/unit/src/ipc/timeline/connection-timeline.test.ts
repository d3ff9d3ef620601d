/** Two ends of a timeline in one process, which has two mappings of the page. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { openSync } from 'node:fs';
import { afterEach, describe, test } from 'node:test';
import { deviceAttributes } from '../../../../../ffi/attributes.ts';
import { CU_STREAM_WAIT_VALUE_GEQ } from '../../../../../ffi/constants.ts';
import { recordCalls, selectDriver } from '../../../../../ffi/driver.ts';
import type { Driver } from '../../../../../ffi/functions.ts';
import {
  closeFd,
  createMemfd,
  duplicateFd,
  libc,
  type Mapping,
  mapShared,
} from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { socketPair } from '../../../../../ffi/linux/socket.ts';
import { withAddress } from '../../../../../ffi/native.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import { Context, DeviceBuffer, Stream } from '../../../../../src/index.ts';
import { COUNTER_COUNT } from '../../../../../src/ipc/protocol.ts';
import { TimelinePage } from '../../../../../src/ipc/timeline/page.ts';
import { hasReached } from '../../../../../src/ipc/timeline/point.ts';
import { Signaler, StreamCounters } from '../../../../../src/ipc/timeline/signaler.ts';
import {
  comparedBits,
  waitForCounter,
  writeCounter,
} from '../../../../../src/ipc/timeline/stream-memory-operations.ts';
import { Waiter } from '../../../../../src/ipc/timeline/waiter.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { withWaitsTable } from '../../../../../src/worker-counts.ts';
import { recordCallsOf } from '../../../../support/arguments.ts';
import { broken, keepingBooks } from '../../../../support/faults.ts';
import { until } from '../../../../support/iterations.ts';
import { Latch } from '../../../../support/latch.ts';
import { processState } from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';

// What the first wait leaves for all later ones.
withWaitsTable(() => {});

const opened: Signaler[] = [];
afterEach(() => {
  for (const signals of opened.splice(0)) signals.close();
});

function ends() {
  const signals = new Signaler(TimelinePage.create());
  opened.push(signals);
  let fd = -1;
  signals.page.shareFd((its) => {
    fd = duplicateFd(its);
  });
  const page = TimelinePage.accept(fd);
  return { signals, page, waits: new Waiter(page) };
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
      assert.equal(waits.enqueueWaits(points, context, consumer), true);
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
      assert.equal(waits.enqueueWaits(points, context), name === 'cuStreamWriteValue64_v2');
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
    waits.enqueueWaits([{ index: 3, count: 2 }], stream.context, stream);
    waits.enqueueWaits(
      [
        { index: 3, count: 5 },
        { index: 4, count: 1 },
      ],
      stream.context,
      stream,
    );
    assert.equal(stream.done, false);
    assert.equal(waits.abandon(), 2);
    await stream.synchronize();
    assert.equal(waits.abandon(), 0);
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
        assert.equal(waits.enqueueWaits([{ index: 3, count }], stream.context, stream), true);
        return stream;
      });
      assert.ok(streams.every(({ done }) => !done));
      // Both are waits for one counter: count 5 includes count 2.
      assert.equal(waits.abandon(), 1);
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
    waits.enqueueWaits([{ index: 9, count: 1 }], context, stream);
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
      assert.equal(waits.enqueueWaits(points, context, within), true);
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
    assert.equal(waits.enqueueWaits(many, context, stream), false);
    assert.equal(waitCalls(recorder.calls), 0);
    for (let round = 0; round < 3; round++) {
      using latch = new Latch();
      latch.hold(stream);
      const before = waitCalls(recorder.calls);
      let queued = 0;
      for (let n = 0; n < 500; n++) {
        const point = { index: round, count: n + 1 };
        if (waits.enqueueWaits([point], context, stream)) queued += 1;
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
        waits.enqueueWaits([{ index, count: 1 }], stream.context, stream);
    };
    fill(first);
    fill(second);
    assert.equal(waitCalls(recorder.calls), 512);
    for (let index = 0; index < 500; index++) page.advanceTo({ index, count: 1 });
    await first.synchronize();
    await second.synchronize();
    assert.equal(waits.enqueueWaits([{ index: 0, count: 2 }], second.context, second), true);
    page.advanceTo({ index: 0, count: 2 });
    await second.synchronize();
    page.close();
  });

  test('the waits of a stream that makes progress are never left to the host', async () => {
    emulate();
    const { page, waits } = ends();
    using stream = Stream.create({ nonBlocking: true });
    for (let count = 1; count <= 1000; count++) {
      assert.equal(waits.enqueueWaits([{ index: 0, count }], stream.context, stream), true);
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
          waits.enqueueWaits([{ index: at, count: 1 }], stream.context, stream);
        assert.equal(streams.filter(wait).length, most);
        if (most === 0 || most === streams.length) {
          waits.abandon();
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
        waits.abandon();
        for (const stream of streams) {
          await stream.synchronize();
          stream.close();
        }
        page.close();
      } finally {
        delete process.env[name];
      }
    });

  /** A driver whose streams write and compare only 32 bits. */
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

  test('a context waits for any points by itself, unless its device compares 32 bits only', () => {
    for (const bits of [32, 64]) {
      const emulated = emulate();
      if (bits === 32) selectDriver(narrow(emulated));
      const { signals, page, waits } = ends();
      const context = Context.primary();
      for (const counts of [
        [],
        [1],
        [2 ** 31 - 1],
        [2 ** 31],
        [1, 2 ** 31],
        [2 ** 31, 1],
        [2 ** 40],
      ])
        assert.equal(
          waits.canWait(
            counts.map((count, index) => ({ index, count })),
            context,
          ),
          bits === 64,
          `${bits}: ${counts}`,
        );
      signals.close();
      page.close();
    }
  });

  test('the host never sets a counter back', () => {
    const page = TimelinePage.create();
    const words = new BigUint64Array(page.hostPage.view());
    for (const [count, word] of [
      [5, 5n],
      [3, 5n],
      [5, 5n],
      [6, 6n],
    ] as const) {
      page.advanceTo({ index: 7, count });
      assert.equal(words[7], word);
    }
    page.close();
  });

  test('a stream signals with the widest operation of its device', async () => {
    for (const bits of [32, 64] as const) {
      const emulated = emulate();
      const calls = recordCallsOf(
        bits === 32 ? narrow(emulated) : emulated,
        'cuStreamWriteValue32_v2',
        'cuStreamWriteValue64_v2',
        'cuStreamWaitValue32_v2',
        'cuStreamWaitValue64_v2',
      );
      const { signals, page, waits } = ends();
      const [producer, consumer] = [0, 0].map(() => Stream.create({ nonBlocking: true })) as [
        Stream,
        Stream,
      ];
      {
        using latch = new Latch();
        for (let round = 1; round <= 3; round += 1) {
          latch.word.shut();
          latch.hold(producer);
          calls.length = 0;
          const points = signals.pointsBehindStream(producer);
          assert.deepEqual(
            points.map(({ count }) => count),
            [round],
          );
          assert.equal(waits.enqueueWaits(points, consumer.context, consumer), true);
          assert.deepEqual(
            calls.map(([name, stream, , count, flags]) => [name, stream, count, flags]),
            [
              [`cuStreamWriteValue${bits}_v2`, producer.handle, round, 0],
              [`cuStreamWaitValue${bits}_v2`, consumer.handle, round, CU_STREAM_WAIT_VALUE_GEQ],
            ],
          );
          assert.equal(consumer.done, false);
          latch.open();
          await consumer.synchronize();
          assert.equal(waits.isReached(points), true);
        }
      }
      producer.close();
      consumer.close();
      signals.close();
      page.close();
      await Context.primary().flush();
    }
  });

  test('a 32-bit operation writes the low half of a count beyond 32 bits, and a 64-bit one all of it', () => {
    for (const bits of [32, 64] as const) {
      const emulated = emulate();
      const calls = recordCallsOf(
        bits === 32 ? narrow(emulated) : emulated,
        'cuStreamWriteValue32_v2',
        'cuStreamWriteValue64_v2',
        'cuStreamWaitValue32_v2',
        'cuStreamWaitValue64_v2',
      );
      using stream = Stream.create();
      using memory = DeviceBuffer.allocate(8);
      const { context, handle } = stream;
      const count = 2 ** 40 + 5;
      memory.fill(0);
      writeCounter(context, handle, memory.address, count);
      waitForCounter(context, handle, memory.address, count);
      assert.equal(comparedBits(context), bits);
      const word = bits === 32 ? 5 : count;
      assert.deepEqual(calls, [
        [`cuStreamWriteValue${bits}_v2`, handle, memory.address, word, 0],
        [`cuStreamWaitValue${bits}_v2`, handle, memory.address, word, CU_STREAM_WAIT_VALUE_GEQ],
      ]);
      stream.synchronizeSync();
      assert.deepEqual(
        new BigUint64Array(memory.copyToHostSync().buffer),
        BigUint64Array.of(BigInt(word)),
      );
    }
  });

  test('a survivor releases its streams, whatever is left in the counters', {
    timeout: 30_000,
  }, async () => {
    // The counts that are awaited, each while the counter has another value, and the value that is
    // left.
    const left: readonly (readonly [readonly (readonly [bigint, number])[], bigint])[] = [
      // So far apart that one seems to come before the other.
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
    for (const bits of [32, 64]) {
      const emulated = emulate();
      if (bits === 32) selectDriver(narrow(emulated));
      for (const [asked, word] of left) {
        const fd = createSealedMemfd('points', 4096);
        const theirs = mapShared(fd, 4096);
        const page = TimelinePage.accept(fd);
        const waits = new Waiter(page);
        using stream = Stream.create({ nonBlocking: true });
        using recorder = recordCalls();
        const words = new BigUint64Array(theirs.view());
        for (const [before, count] of asked) {
          words[2] = before;
          const isDevices = bits === 64 || count < 2 ** 31;
          assert.equal(
            waits.enqueueWaits([{ index: 2, count }], stream.context, stream),
            isDevices,
          );
        }
        const calls = recorder.calls.filter(({ name }) => name.startsWith('cuStreamWaitValue'));
        assert.ok(calls.every(({ name }) => name === `cuStreamWaitValue${bits}_v2`));
        words[2] = word;
        waits.abandon();
        await stream.synchronize();
        theirs.unmap();
        page.close();
      }
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

  const F_ADD_SEALS = 1033;

  /** A memfd that can be sealed but is not. */
  function createSealable(byteLength: number): number {
    const fd = withAddress(Buffer.from('points\0'), (address) => libc.memfd_create(address, 3));
    assert.equal(libc.ftruncate(fd, byteLength), 0);
    return fd;
  }

  /** A page with one additional seal. */
  function sealed(seal: number): number {
    const fd = createSealedMemfd('points', 4096);
    assert.equal(libc.fcntl(fd, F_ADD_SEALS, seal), 0);
    return fd;
  }

  test('a page is accepted only if nobody can take its memory away', () => {
    const shrinkOnly = createSealable(4096);
    assert.equal(libc.fcntl(shrinkOnly, F_ADD_SEALS, 2), 0);
    for (const fd of [
      createMemfd('points', 4096),
      createSealedMemfd('points', 8192),
      shrinkOnly,
      // No further seals; no writing; no new writable mappings.
      sealed(1),
      sealed(8),
      sealed(16),
      openSync('/dev/null', 'r+'),
      ...socketPair(),
    ])
      assert.throws(() => TimelinePage.accept(fd), { name: 'IpcError' });
  });

  test('a received page can no longer be resized by its sender, and still works', async () => {
    emulate();
    const mappings = () => processState().mappings;
    const before = mappings();
    const fd = createSealedMemfd('points', 4096);
    const theirs = mapShared(fd, 4096);
    const page = TimelinePage.accept(duplicateFd(fd));
    const waits = new Waiter(page);
    using stream = Stream.create({ nonBlocking: true });
    assert.equal(waits.enqueueWaits([{ index: 0, count: 1 }], stream.context, stream), true);
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
    const restore = (value: typeof fcntl): void => {
      Object.defineProperty(libc, 'fcntl', { configurable: true, enumerable: true, value });
    };
    restore((fd, command, seals) => fcntl(fd, command, seals === 16 ? 1 << 20 : seals));
    const { page, waits } = ends();
    restore(fcntl);
    using stream = Stream.create({ nonBlocking: true });
    assert.equal(waits.enqueueWaits([{ index: 0, count: 1 }], stream.context, stream), false);
    assert.equal(stream.done, true);
    page.close();
  });

  test('a page that the driver fails to unregister is closed nevertheless, and its connection ends', async () => {
    const lost = CUresult.CUDA_ERROR_LAUNCH_FAILED;
    selectDriver(broken(emulate(), 'cuMemHostUnregister', lost));
    const page = TimelinePage.create();
    page.addressIn(Context.primary(), 0);
    const warned = once(process, 'warning');
    let isUnmapped = false;
    page.close(() => {
      isUnmapped = true;
    });
    assert.equal(isUnmapped, true);
    const [{ message }] = await warned;
    assert.match(message, /cuMemHostUnregister/);
  });

  test('a page is unregistered behind the work of each context that waits on it', async () => {
    const { driver, open } = keepingBooks(emulate({ CUFFI_EMULATED_DEVICES: '2' }));
    selectDriver(driver);
    const [context, other] = [Context.primary(0), Context.primary(1)];
    using stream = Stream.create({ device: 1, nonBlocking: true });
    using latch = new Latch(other);
    const isRegistered = (): boolean =>
      [...open].some((what) => what.startsWith('cuMemHostRegister') && !before.has(what));
    const before = new Set(open);
    const page = TimelinePage.create();
    for (const each of [context, other]) page.addressIn(each, 0);
    latch.hold(stream);
    let isUnmapped = false;
    page.close(() => {
      isUnmapped = true;
    });
    await nextLoopIteration();
    context.releases.drainReady();
    assert.deepEqual([isUnmapped, isRegistered()], [false, true]);
    latch.open();
    await stream.synchronize();
    await context.flush();
    assert.deepEqual([isUnmapped, isRegistered()], [true, false]);
  });

  test('a counter is never set back by the host, only forward', () => {
    const page = TimelinePage.create();
    const mappings: Mapping[] = [];
    page.shareFd((fd) => mappings.push(mapShared(fd, 4096)));
    const [mapping] = mappings as [Mapping];
    const theirs = new BigUint64Array(mapping.view());
    for (const [stands, count, then] of [
      [7n, 5, 7n],
      [7n, 7, 7n],
      [7n, 8, 8n],
      [0n, 1, 1n],
      // The high half belongs to the writer.
      [2n ** 32n + 7n, 5, 2n ** 32n + 7n],
    ] as const) {
      theirs[3] = stands;
      page.advanceTo({ index: 3, count });
      assert.equal(theirs[3], then, `${stands} to ${count}`);
    }
    mapping.unmap();
    page.close();
  });

  test('counters wrap around, and go to other streams when their stream is gone', () => {
    assert.equal(hasReached(0xffff_fffe, 1), false);
    assert.equal(hasReached(1, 0xffff_fffe), true);
    const page = TimelinePage.create();
    const counters = new StreamCounters(page);
    let isOver = false;
    const taken = Array.from({ length: COUNTER_COUNT }, () => counters.allocate(() => isOver));
    assert.equal(new Set(taken.map((counter) => counter?.index)).size, COUNTER_COUNT);
    assert.equal(
      counters.allocate(() => false),
      undefined,
    );
    const point = StreamCounters.next(taken[0] as NonNullable<(typeof taken)[0]>);
    isOver = true;
    assert.equal(counters.allocate(() => false)?.index, 1);
    page.advanceTo(point);
    const again = counters.allocate(() => false);
    assert.equal(again?.index, 0);
    assert.deepEqual(again && StreamCounters.next(again), { index: 0, count: 2 });
    page.close();
  });
});
