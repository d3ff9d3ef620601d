/** Both ends of a channel in one process: it is sent over a connection with two ends here. */
import assert from 'node:assert/strict';
import { readlinkSync } from 'node:fs';
import { describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { selectDriver } from '../../../../../ffi/driver.ts';
import { closeFd, duplicateFd, libc } from '../../../../../ffi/linux/libc.ts';
import { sendMessage } from '../../../../../ffi/linux/message.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import { Context, Device, DeviceBuffer, Stream } from '../../../../../src/index.ts';
import { Ring, Seat } from '../../../../../src/ipc/channel/ring.ts';
import { WakeSockets } from '../../../../../src/ipc/channel/wake-sockets.ts';
import {
  Channel,
  type ChannelConsumer,
  type ChannelOptions,
  type ConsumerSlot,
  leases,
  type ProducerSlot,
  Timeline,
} from '../../../../../src/ipc/index.ts';
import { nextLoopIteration } from '../../../../../src/poller.ts';
import { broken, losing } from '../../../../support/faults.ts';
import { turns, until } from '../../../../support/iterations.ts';
import { Latch } from '../../../../support/latch.ts';
import {
  comesBackTo,
  descriptorNumbers,
  openDescriptors,
  processState,
  replaceLibc,
} from '../../../../support/process-state.ts';
import { emulate } from '../../emulate.ts';
import { peerPair } from '../peer/support.ts';

const small = { slots: 2, shape: 4, dtype: 'uint32', deliver: 'all' } as const;

/** Returns what arrives at the other end of a connection, as another process would get it. */
async function sent(channel: Channel): Promise<ChannelConsumer> {
  using pair = peerPair();
  await pair.a.send(channel as unknown);
  return (await pair.b.receive()) as ChannelConsumer;
}

/** Acquires, fills with the number of the message, and publishes. */
async function produce(channel: Channel, stream?: Stream): Promise<void> {
  const slot = await channel.acquire({ timeoutMs: 5000 });
  slot.array.fill(slot.message, { ...(stream && { stream }) });
  slot.publish({ ...(stream && { stream }) });
}

/** Resolves when what was closed is gone. */
async function settled(): Promise<void> {
  let before = openDescriptors();
  for (let same = 0; same < 50; same += 1) {
    await delay(1);
    if (openDescriptors() !== before) same = 0;
    before = openDescriptors();
  }
}

const take = async (channel: ChannelConsumer): Promise<ConsumerSlot> =>
  (await channel.receive({ timeoutMs: 5000 })) as ConsumerSlot;

// First: nothing of other tests is left yet.
describe('a Channel', () => {
  test('ends the waits of both ends, and returns all that it had', async () => {
    emulate();
    // The first channel leaves what later ones use.
    const first = Channel.create(small);
    (await sent(first)).close();
    first.close();
    await settled();
    const before = processState();
    {
      const channel = Channel.create(small);
      const consumer = await sent(channel);
      await produce(channel);
      await produce(channel);
      const blocked = channel.acquire();
      const drained = channel.drained();
      const kept = await take(consumer);
      channel.close();
      await assert.rejects(blocked, { name: 'ClosedError' });
      await assert.rejects(drained, { name: 'ClosedError' });
      await assert.rejects(channel.acquire(), { name: 'ClosedError' });
      assert.throws(() => channel.tryAcquire(), { name: 'ClosedError' });
      kept.release();
      (await take(consumer)).release();
      assert.equal(await consumer.receive(), undefined);
      // After a turn of the event loop it settles at once.
      await nextLoopIteration();
      const another = consumer.receive();
      consumer.close();
      assert.equal(await another, undefined);
      await assert.rejects(consumer.receive(), { name: 'ClosedError' });
    }
    {
      const channel = Channel.create(small);
      const consumer = await sent(channel);
      const waiting = consumer.receive();
      consumer.close();
      await assert.rejects(waiting, { name: 'ClosedError' });
      await until(() => channel.consumers === 0);
      channel.close();
    }
    await comesBackTo(before);
    assert.deepEqual(leases.stats().leases, []);
  });
});

describe('Channel.create', () => {
  test('refuses wrong options before the driver is asked', () => {
    emulate();
    const wrong: readonly (readonly [object, string, RegExp])[] = [
      [{ slots: 0 }, 'RangeError', /slots/],
      [{ slots: 1025 }, 'RangeError', /from 1 to 1024/],
      [{ slots: '2' }, 'TypeError', /slots/],
      [{ deliver: 'some' }, 'TypeError', /'all' or 'one'/],
      [{ deliver: undefined }, 'TypeError', /'all' or 'one'/],
      [{ shape: undefined, dtype: undefined }, 'TypeError', /a shape or a byteLength/],
      [{ byteLength: 4 }, 'TypeError', /a shape or a byteLength/],
      [{ shape: undefined, byteLength: 4 }, 'TypeError', /dtype needs a shape/],
      [{ shape: undefined, dtype: undefined, byteLength: 0 }, 'RangeError', /byteLength/],
      [{ shape: [-1] }, 'RangeError', /shape/],
      [{ dtype: 'float7' }, 'TypeError', /float7/],
      [{ shape: 0 }, 'RangeError', /size of all slots/],
      [{ ahead: true, deliver: 'one' }, 'TypeError', /ahead needs deliver: 'all'/],
      [{ ahead: 1 }, 'TypeError', /ahead/],
      [{ readOnly: 'yes' }, 'TypeError', /readOnly/],
      [{ busyPollUs: -1 }, 'RangeError', /busyPollUs/],
      [{ slot: 2 }, 'TypeError', /did you mean/i],
    ];
    for (const [change, name, message] of wrong)
      assert.throws(
        () => Channel.create({ ...small, ...change } as ChannelOptions),
        { name, message },
        JSON.stringify(change),
      );
  });

  test('releases the slots if the ring cannot be made', async () => {
    const driver = emulate();
    const before = processState();
    for (const call of ['cuMemCreate', 'cuMemSetAccess'] as const) {
      selectDriver(broken(driver, call, CUresult.CUDA_ERROR_OUT_OF_MEMORY));
      assert.throws(() => Channel.create(small), { name: 'CudaError' });
      selectDriver(driver);
    }
    await comesBackTo(before);
  });

  test('has the properties of its options, and those of its layout', async () => {
    emulate();
    using channel = Channel.create({ ...small, shape: [2, 3], busyPollUs: 7 });
    using consumer = await sent(channel);
    for (const end of [channel, consumer])
      assert.deepEqual(
        [end.slots, end.byteLength, end.shape, end.dtype.name, end.deliver, end.device],
        [2, 24, [2, 3], 'uint32', 'all', Device.get(0)],
      );
    assert.deepEqual([channel.busyPollUs, consumer.busyPollUs], [7, 0]);
    assert.throws(() => {
      consumer.busyPollUs = 2_000_000;
    }, RangeError);
    using bytes = Channel.create({ slots: 1, byteLength: 100, deliver: 'one' });
    assert.deepEqual([bytes.shape, bytes.dtype.name, bytes.byteLength], [[100], 'uint8', 100]);
    assert.match(String(channel), /Channel.*2 slots of uint32 \[2, 3\]/);
    assert.match(String(consumer), /ChannelConsumer.*2 slots/);
  });
});

describe('a message of a Channel', () => {
  test('has meta, and a layout of its own', async () => {
    emulate();
    using channel = Channel.create({ ...small, shape: [4, 4] });
    using consumer = await sent(channel);
    const slot = await channel.acquire();
    slot.buffer.fill(1);
    const meta = { frame: 3, name: 'ü', 'a b': [null, 1.5] };
    slot.publish({ meta, shape: [3, 2], dtype: 'uint8' });
    const received = await take(consumer);
    assert.deepEqual(received.meta, meta);
    assert.deepEqual([received.array.shape, received.array.dtype.name], [[3, 2], 'uint8']);
    assert.deepEqual([...(await received.array.copyToHost())], [1, 1, 1, 1, 1, 1]);
    assert.equal(received.buffer.byteLength, 64);
    received.release();
    await produce(channel);
    const plain = await take(consumer);
    assert.deepEqual([plain.meta, plain.array.shape], [undefined, [4, 4]]);
    assert.equal(await plain.filled(), true);
  });

  test('is refused if its meta or layout is too large or invalid, and can be published then', async () => {
    emulate();
    using channel = Channel.create(small);
    using consumer = await sent(channel);
    const slot = await channel.acquire();
    const circular: { self?: unknown } = {};
    circular.self = circular;
    const wrong: readonly (readonly [object, string, RegExp])[] = [
      [{ meta: 'x'.repeat(1023) }, 'RangeError', /1.?KiB/],
      [{ meta: () => {} }, 'TypeError', /JSON/],
      [{ meta: circular }, 'TypeError', /JSON/],
      [{ meta: 1n }, 'TypeError', /JSON/],
      [{ shape: 5 }, 'RangeError', /does not fit/],
      [{ dtype: 'float64' }, 'RangeError', /does not fit/],
      [{ stream: {} }, 'TypeError', /Stream/],
      [{ metta: 1 }, 'TypeError', /did you mean 'meta'/i],
    ];
    for (const [options, name, message] of wrong)
      assert.throws(() => slot.publish(options as never), { name, message });
    assert.equal(channel.published, 0);
    slot.publish({ meta: 'x'.repeat(1022) });
    assert.equal(((await take(consumer)).meta as string).length, 1022);
  });

  test('can be used until it is published, and until it is released', async () => {
    emulate();
    using channel = Channel.create(small);
    using consumer = await sent(channel);
    const slot = await channel.acquire();
    slot.publish();
    for (const use of [() => slot.array, () => slot.buffer, () => slot.publish()])
      assert.throws(use, { name: 'CuffiError', message: /published or canceled/ });
    slot.cancel();
    const received = await take(consumer);
    received.release();
    received.release();
    for (const use of [() => received.array, () => received.buffer])
      assert.throws(use, { name: 'CuffiError', message: /released already/ });
  });

  test('arrives in the order of acquiring, without those that were canceled', async () => {
    emulate();
    for (const deliver of ['all', 'one'] as const) {
      using channel = Channel.create({ ...small, slots: 4, deliver });
      using consumer = await sent(channel);
      const slots = [];
      for (let at = 0; at < 4; at += 1) slots.push(await channel.acquire());
      slots[2]?.publish({ meta: 2 });
      slots[1]?.cancel();
      assert.equal(channel.published, 0);
      await assert.rejects(consumer.receive({ timeoutMs: 5 }), { name: 'TimeoutError' });
      slots[0]?.publish({ meta: 0 });
      assert.equal(channel.published, 3);
      // The last one gives its number back.
      slots[3]?.[Symbol.dispose]();
      (await channel.acquire()).publish({ meta: 'new 3' });
      const seen = [];
      for (let at = 0; at < 3; at += 1) {
        const slot = await take(consumer);
        seen.push([slot.message, slot.meta]);
        slot.release();
      }
      assert.deepEqual(seen, [
        [0, 0],
        [2, 2],
        [3, 'new 3'],
      ]);
      await channel.drained({ timeoutMs: 5000 });
      for (let at = 0; at < 4; at += 1) await produce(channel);
    }
  });

  test('is named in a time-out if it is the oldest that is not released', async () => {
    emulate();
    for (const released of [0, 1, 2, 3]) {
      using channel = Channel.create({ ...small, slots: 4 });
      using consumer = await sent(channel);
      for (let message = 0; message < 4; message += 1) await produce(channel);
      for (let message = 0; message < released; message += 1) (await take(consumer)).release();
      const holder = await take(consumer);
      const late = (what: RegExp) => ({ name: 'TimeoutError', message: what });
      const named = new RegExp(`not released message ${released}: release\\(\\) its slot there`);
      await assert.rejects(channel.drained({ timeoutMs: 5 }), late(named));
      if (released === 0) await assert.rejects(channel.acquire({ timeoutMs: 5 }), late(named));
      holder.release();
    }
  });

  test('wakes up its consumers when they can see that it is closed, not before', async (t) => {
    emulate();
    const channel = Channel.create(small);
    using consumer = await sent(channel);
    const waiting = consumer.receive();
    await turns();
    const order: string[] = [];
    const note = (place: object, name: string): void => {
      const real = Reflect.get(place, name) as (...args: unknown[]) => unknown;
      t.mock.method(
        place as never,
        name as never,
        function (this: unknown, ...args: unknown[]) {
          order.push(name);
          return real.apply(this, args);
        } as never,
      );
    };
    note(Ring.prototype, 'closeAt');
    note(WakeSockets.prototype, 'wake');
    channel.close();
    assert.equal(await waiting, undefined);
    assert.deepEqual(order.slice(0, 2), ['closeAt', 'wake']);
  });

  test('can be canceled when the ring has turned, and its slot is free', async () => {
    emulate();
    for (const deliver of ['all', 'one'] as const) {
      using channel = Channel.create({ ...small, deliver });
      using consumer = await sent(channel);
      for (let message = 0; message < 6; message += 1) {
        (await channel.acquire({ timeoutMs: 5000 })).cancel();
        await produce(channel);
        (await take(consumer)).release();
      }
      await channel.drained({ timeoutMs: 5000 });
      assert.equal(channel.published, 6);
    }
  });

  test('cannot be written by a consumer of a channel that is read-only', async () => {
    emulate();
    using channel = Channel.create({ ...small, readOnly: true });
    using consumer = await sent(channel);
    await produce(channel);
    const slot = await take(consumer);
    assert.equal(slot.array.readOnly, true);
    assert.throws(() => slot.array.fill(1), { name: 'TypeError' });
    assert.throws(() => slot.buffer.fill(1), { name: 'TypeError' });
  });
});

describe('Channel.acquire', () => {
  test('waits for the consumers, by signal or time-out no longer', async () => {
    emulate();
    using channel = Channel.create(small);
    using consumer = await sent(channel);
    await produce(channel);
    await produce(channel);
    await assert.rejects(channel.acquire({ timeoutMs: 5 }), { name: 'TimeoutError' });
    const controller = new AbortController();
    const aborted = channel.acquire({ signal: controller.signal });
    controller.abort(new Error('enough'));
    await assert.rejects(aborted, /enough/);
    await assert.rejects(
      channel.acquire({ signal: AbortSignal.abort(new Error('before')) }),
      /before/,
    );
    const first = await take(consumer);
    const acquired = channel.acquire();
    first.release();
    assert.equal((await acquired).message, 2);
  });

  test('loses no slot to a signal that aborts right after', async () => {
    emulate();
    using channel = Channel.create({ ...small, busyPollUs: 1000 });
    using consumer = await sent(channel);
    await produce(channel);
    await produce(channel);
    for (let round = 0; round < 50; round += 1) {
      const slot = await take(consumer);
      const controller = new AbortController();
      const acquired = channel.acquire({ signal: controller.signal }).catch(() => undefined);
      setImmediate(() => slot.release());
      setTimeout(() => controller.abort(), round % 3);
      ((await acquired) ?? (await channel.acquire({ timeoutMs: 5000 }))).publish();
    }
    assert.equal(channel.published, 52);
  });

  test('needs a non-blocking stream and a channel with ahead to let a stream wait', async () => {
    emulate();
    using channel = Channel.create(small);
    using ahead = Channel.create({ ...small, slots: 1, ahead: true });
    using stream = Stream.create({ nonBlocking: true });
    using blocking = Stream.create();
    await assert.rejects(channel.acquire({ stream }), {
      name: 'TypeError',
      message: /ahead: true/,
    });
    assert.throws(() => channel.tryAcquire({ stream }), { name: 'TypeError', message: /ahead/ });
    await assert.rejects(ahead.acquire({ stream: blocking }), {
      name: 'TypeError',
      message: /non-blocking/,
    });
    using consumer = await sent(ahead);
    const plain = await sent(channel);
    await assert.rejects(plain.ahead(stream).next(), { name: 'TypeError', message: /ahead: true/ });
    await assert.rejects(consumer.ahead(blocking).next(), {
      name: 'TypeError',
      message: /non-blocking/,
    });
    await assert.rejects(consumer.ahead(undefined as never).next(), { name: 'TypeError' });
    plain.close();
    const slot = await ahead.acquire({ stream });
    assert.throws(() => ahead.tryAcquire({ stream }), {
      name: 'CuffiError',
      message: /not published/,
    });
    for (const options of [{ meta: 1 }, { shape: 2 }, { dtype: 'uint8' }] as const)
      assert.throws(() => slot.publish(options), { name: 'TypeError', message: /with ahead/ });
    slot.publish({ stream });
    const late = await ahead.acquire({ stream });
    assert.equal(stream.done, false);
    (await take(consumer)).release();
    late.cancel();
    await stream.synchronize();
  });

  test('waits for the work of the producer itself, also without a consumer', async () => {
    emulate();
    using held = Stream.create({ nonBlocking: true });
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(held);
    using channel = Channel.create({ ...small, slots: 1 });
    await produce(channel, held);
    assert.equal(channel.tryAcquire(), undefined);
    using ahead = Channel.create({ ...small, slots: 1, ahead: true });
    await produce(ahead, held);
    (await ahead.acquire({ stream })).publish({ stream });
    assert.equal(stream.done, false);
    latch.open();
    await stream.synchronize();
    (await channel.acquire({ timeoutMs: 5000 })).cancel();
  });

  for (const copies of [0, 1, 100])
    test(`waits for room instead of queueing more than a stream takes, with ${copies} copies a slot`, async () => {
      emulate();
      using ahead = Channel.create({ ...small, slots: 1, ahead: true });
      using consumer = await sent(ahead);
      using stream = Stream.create({ nonBlocking: true });
      const publish = (slot: ProducerSlot): void => {
        for (let n = 0; n < copies; n += 1) slot.array.fill(n, { stream });
        slot.publish({ stream });
      };
      publish(await ahead.acquire({ stream }));
      let count = 1;
      for (;;) {
        const slot = ahead.tryAcquire({ stream });
        if (!slot) break;
        publish(slot);
        count += 1;
      }
      // Half of what a stream takes. The first slot needs no wait, and its work is done by then.
      assert.equal(count, 1 + Math.ceil(480 / (copies + 2)));
      let next: number | undefined;
      const more = ahead.acquire({ stream, timeoutMs: 5000 }).then((slot) => {
        next = slot.message;
      });
      await turns();
      assert.equal(next, undefined);
      for (let at = 0; at < count; at += 1) (await take(consumer)).release();
      await more;
      assert.equal(next, count);
    });

  test('waits for room also if the slot is free, and ends that wait as any other', async () => {
    emulate();
    const ahead = Channel.create({ ...small, slots: 8, ahead: true });
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    using timeline = Timeline.create();
    using buffer = DeviceBuffer.allocate(16);
    timeline.wait(1, { stream });
    for (let n = 0; n < 479; n += 1) buffer.fill(1, { stream });
    assert.equal(ahead.tryAcquire({ stream }), undefined);
    ahead.tryAcquire({ stream: other })?.cancel();
    await assert.rejects(ahead.acquire({ stream, timeoutMs: 5 }), { name: 'TimeoutError' });
    const acquired = ahead.acquire({ stream, timeoutMs: 5000 });
    await turns();
    timeline.signal(1, { stream: other });
    assert.equal((await acquired).message, 0);
    timeline.wait(2, { stream });
    for (let n = 0; n < 479; n += 1) buffer.fill(1, { stream });
    const late = ahead.acquire({ stream });
    ahead.close();
    await assert.rejects(late, { name: 'ClosedError' });
    timeline.signal(2, { stream: other });
    await stream.synchronize();
  });
});

describe('ChannelConsumer.ahead', () => {
  test('waits for room instead of queueing more than the stream takes', async () => {
    emulate();
    using channel = Channel.create({ ...small, slots: 1000, ahead: true });
    using consumer = await sent(channel);
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    using timeline = Timeline.create();
    using buffer = DeviceBuffer.allocate(16);
    for (let n = 0; n < 1000; n += 1) await produce(channel, other);
    await other.synchronize();
    timeline.wait(1, { stream });
    const slots = consumer.ahead(stream, { timeoutMs: 5000 });
    const turn = async (): Promise<void> => {
      const slot = (await slots.next()).value as ConsumerSlot;
      slot.buffer.copyTo(buffer, { stream });
      slot.release({ stream });
    };
    // All slots are filled: nothing but the work itself takes room.
    let count = 0;
    const loop = (async () => {
      for (; count < 1000; count += 1) await turn();
    })();
    await until(() => count >= 240);
    await turns();
    assert.equal(count, 240);
    timeline.signal(1, { stream: other });
    await loop;
    assert.equal(count, 1000);
    await stream.synchronize();
  });

  test('hands out at most 64 slots that are not filled, and needs a slot to be released first', async () => {
    emulate();
    using channel = Channel.create({ ...small, slots: 100, ahead: true });
    using consumer = await sent(channel);
    using stream = Stream.create({ nonBlocking: true });
    let count = 0;
    await assert.rejects(
      async () => {
        for await (const slot of consumer.ahead(stream, { timeoutMs: 20 })) {
          count += 1;
          slot.release({ stream });
        }
      },
      { name: 'TimeoutError' },
    );
    assert.equal(count, 64);
    await produce(channel);
    assert.equal((await consumer.ahead(stream).next()).value?.message, 64);
    using two = Channel.create({ ...small, ahead: true });
    using other = await sent(two);
    const slots = other.ahead(stream);
    const first = (await slots.next()).value as ConsumerSlot;
    await slots.next();
    await assert.rejects(slots.next(), { name: 'CuffiError', message: /release that first/ });
    await assert.rejects(first.filled({ timeoutMs: 5 }), { name: 'TimeoutError' });
  });
});

describe('the memory of a Channel with ahead', () => {
  const PUNCH_HOLE = 2 | 1;
  const punch = (fd: number): number => libc.fallocate(fd, PUNCH_HOLE, 0, 4096);
  /** How many descriptors of rings and seats are open. */
  const memories = (): number =>
    [...descriptorNumbers()].filter((fd) => /memfd:cuffi-(channel|seat)/.test(pathOf(fd))).length;
  const pathOf = (fd: string): string => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return '';
    }
  };
  /** Adds a consumer, and returns its ring, its seat and its two sockets. */
  const seatOf = (channel: Channel): readonly number[] => {
    channel.exported.addSeat();
    return channel.exported.takeSeatFds();
  };
  const options = { ...small, slots: 1, ahead: true } as const;

  test('cannot be replaced by any process once both ends have mapped it', async () => {
    emulate();
    using channel = Channel.create(options);
    const fds: number[] = [];
    const { takeSeatFds } = channel.exported;
    channel.exported.takeSeatFds = () => {
      const taken = takeSeatFds.call(channel.exported);
      fds.push(...taken.slice(0, 2).map(duplicateFd));
      return taken;
    };
    const consumers = [await sent(channel), await sent(channel), await sent(channel)];
    assert.equal(fds.length, 6);
    for (const fd of fds) assert.equal(punch(fd), -1);
    fds.forEach(closeFd);
    for (const each of consumers) each.close();
  });

  test('lets streams of the producer wait only for consumers that have opened it', async () => {
    emulate();
    const before = memories();
    {
      using channel = Channel.create(options);
      using stream = Stream.create({ nonBlocking: true });
      const [ring, seat, receiveEnd, sendEnd] = seatOf(channel) as [number, number, number, number];
      (await channel.acquire({ stream })).publish({ stream });
      // A hostile consumer would replace the memory now.
      assert.equal(punch(seat), 0);
      assert.equal(channel.tryAcquire({ stream }), undefined);
      const acquired = channel.acquire({ stream, timeoutMs: 5000 });
      await nextLoopIteration();
      assert.equal(stream.done, true);
      const words = Seat.accept(seat, 1, true);
      words.words.close();
      // What a consumer does once it has opened the channel.
      sendMessage(sendEnd, new Uint8Array(1));
      const slot = await acquired;
      assert.equal(stream.done, false);
      slot.publish({ stream });
      for (const fd of [ring, receiveEnd, sendEnd]) closeFd(fd);
      await until(() => channel.consumers === 0);
      await stream.synchronize();
    }
    await Context.primary().flush();
    await until(() => memories() <= before);
  });

  test('is one for each consumer, which all get every message and the end', async () => {
    emulate();
    const before = memories();
    {
      using channel = Channel.create({ ...options, slots: 2 });
      using stream = Stream.create({ nonBlocking: true });
      const consumers = [await sent(channel), await sent(channel), await sent(channel)];
      const streams = consumers.map(() => Stream.create({ nonBlocking: true }));
      const messages = consumers.map(async (consumer, at) => {
        const found: number[] = [];
        const waiting = { stream: streams[at] as Stream };
        for await (const slot of consumer.ahead(waiting.stream, { timeoutMs: 10_000 })) {
          found.push(slot.message);
          slot.release(waiting);
        }
        return found;
      });
      for (let at = 0; at < 8; at += 1)
        (await channel.acquire({ stream, timeoutMs: 10_000 })).publish({ stream });
      await channel.drained({ timeoutMs: 10_000 });
      channel.close();
      // Slots that are taken ahead of the end are not filled.
      for (const found of await Promise.all(messages))
        assert.deepEqual(found.slice(0, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
      for (const each of [...consumers, ...streams]) each.close();
    }
    await Context.primary().flush();
    await until(() => memories() <= before);
  });

  test('is waited for by the host if the kernel cannot keep it from being replaced', async () => {
    emulate();
    const { fcntl } = libc;
    const F_ADD_SEALS = 1033;
    const F_SEAL_FUTURE_WRITE = 0x10;
    // Before Linux 5.1 there is no such seal.
    replaceLibc('fcntl', (fd, command, value) =>
      fcntl(
        fd,
        command,
        command === F_ADD_SEALS && value === F_SEAL_FUTURE_WRITE ? 1 << 20 : value,
      ),
    );
    using channel = Channel.create(options);
    using stream = Stream.create({ nonBlocking: true });
    using other = Stream.create({ nonBlocking: true });
    using consumer = await sent(channel);
    replaceLibc('fcntl', fcntl);
    const slots = consumer.ahead(other, { timeoutMs: 5000 });
    const next = slots.next();
    await nextLoopIteration();
    assert.equal(other.done, true);
    (await channel.acquire({ stream })).publish({ stream });
    const slot = (await next).value as ConsumerSlot;
    assert.equal(channel.tryAcquire({ stream }), undefined);
    const acquired = channel.acquire({ stream, timeoutMs: 5000 });
    slot.release({ stream: other });
    (await acquired).cancel();
  });
});

describe('the end of a Channel', () => {
  test('an acquired slot that was not published is no message', async () => {
    emulate();
    for (const ahead of [false, true]) {
      const channel = Channel.create({ ...small, slots: 3, ahead });
      using consumer = await sent(channel);
      await produce(channel);
      await channel.acquire();
      (await channel.acquire()).publish();
      channel.close();
      (await take(consumer)).release();
      // What was acquired later comes, if the one before can be left out.
      const last = await consumer.receive({ timeoutMs: 1000 });
      assert.equal(last?.message, ahead ? undefined : 2);
      last?.release();
      assert.equal(await consumer.receive({ timeoutMs: 1000 }), undefined);
    }
  });

  test('ahead: its close frees the waiting streams itself, when what was published has come', async () => {
    emulate();
    const channel = Channel.create({ ...small, ahead: true });
    using consumer = await sent(channel);
    using held = Stream.create({ nonBlocking: true });
    using first = Stream.create({ nonBlocking: true });
    using second = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(held);
    await produce(channel, held);
    const one = (await consumer.ahead(first).next()).value as ConsumerSlot;
    const two = (await consumer.ahead(second).next()).value as ConsumerSlot;
    channel.close();
    await until(() => channel.closed);
    assert.deepEqual([first.done, second.done], [false, false]);
    latch.open();
    await first.synchronize();
    await until(() => second.done);
    assert.deepEqual([await one.filled(), await two.filled()], [true, false]);
    assert.equal((await consumer.ahead(first).next()).done, true);
  });

  test('ahead: no host needs a turn of its event loop for the end of the producer', async () => {
    emulate();
    using waiting = Stream.create({ nonBlocking: true });
    const channel = Channel.create({ ...small, ahead: true });
    using consumer = await sent(channel);
    await consumer.ahead(waiting).next();
    assert.equal(waiting.done, false);
    channel.close();
    assert.equal(waiting.done, true);
  });

  test('to one: a consumer ends when the others have released what they have', async () => {
    emulate();
    const channel = Channel.create({ ...small, deliver: 'one' });
    using first = await sent(channel);
    using second = await sent(channel);
    await produce(channel);
    const kept = await take(first);
    channel.close();
    const end = second.receive();
    await assert.rejects(second.receive({ timeoutMs: 20 }), { name: 'TimeoutError' });
    assert.equal(await first.receive({ timeoutMs: 5000 }), undefined);
    kept.release();
    assert.equal(await end, undefined);
  });

  test('to one: a message is granted before its work is done, and arrives after', async () => {
    emulate();
    using channel = Channel.create({ ...small, deliver: 'one' });
    using consumer = await sent(channel);
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    const received = consumer.receive();
    await produce(channel, stream);
    await assert.rejects(consumer.receive({ timeoutMs: 20 }), { name: 'TimeoutError' });
    latch.open();
    assert.equal((await received)?.message, 0);
  });

  test('to one: what a consumer has released is not delivered again when it ends', async () => {
    emulate();
    using channel = Channel.create({ ...small, deliver: 'one' });
    using first = await sent(channel);
    await produce(channel);
    (await take(first)).release();
    await channel.drained({ timeoutMs: 5000 });
    first.close();
    await until(() => channel.consumers === 0);
    using second = await sent(channel);
    await produce(channel);
    assert.equal((await take(second)).message, 1);
  });

  test('to one: nothing is granted to a consumer that has ended', async () => {
    emulate();
    using channel = Channel.create({ ...small, deliver: 'one' });
    using first = await sent(channel);
    const waiting = first.receive().catch((error: Error) => error.name);
    await turns();
    first.close();
    assert.equal(await waiting, 'ClosedError');
    using second = await sent(channel);
    const received = second.receive({ timeoutMs: 5000 });
    await produce(channel);
    assert.equal((await received)?.message, 0);
  });

  test('to one: what a closed consumer had goes to another', async () => {
    emulate();
    using channel = Channel.create({ ...small, deliver: 'one' });
    using first = await sent(channel);
    using second = await sent(channel);
    await produce(channel);
    assert.equal((await take(first)).redelivered, false);
    first.close();
    const again = await take(second);
    assert.deepEqual([again.message, again.redelivered], [0, true]);
  });

  test('to one: without consumers, a closed channel keeps no descriptor and no mapping', async () => {
    emulate();
    let before: Omit<ReturnType<typeof processState>, 'free'> | undefined;
    // The first round opens what stays open for good. In the last one the consumer ends later.
    for (const hasConsumer of [true, false, true]) {
      const channel = Channel.create({ ...small, deliver: 'one' });
      const consumer = hasConsumer ? await sent(channel) : undefined;
      await produce(channel);
      await produce(channel);
      channel.close();
      consumer?.close();
      await Context.primary().flush();
      await settled();
      const { descriptors, mappings } = processState();
      before ??= { descriptors, mappings };
      assert.deepEqual({ descriptors, mappings }, before, `consumer: ${hasConsumer}`);
    }
  });

  test('a lost context ends it at both ends', async () => {
    const { driver, lose } = losing(emulate(), CUresult.CUDA_ERROR_ILLEGAL_ADDRESS);
    selectDriver(driver);
    const channel = Channel.create(small);
    const consumer = await sent(channel);
    using stream = Stream.create({ nonBlocking: true });
    new Latch().hold(stream);
    const received = consumer.receive();
    await produce(channel, stream);
    lose();
    await assert.rejects(received, { name: 'PeerGoneError', message: /without closing/ });
    await assert.rejects(channel.acquire(), { name: 'CuffiError', message: /lost/ });
  });

  test('without stream memory operations the host stores what is done', async () => {
    const { attribute } = Device.prototype;
    Device.prototype.attribute = function of(name) {
      return name === 'canUse64BitStreamMemOps' ? 0 : attribute.call(this, name);
    };
    try {
      emulate();
      using channel = Channel.create(small);
      using consumer = await sent(channel);
      using stream = Stream.create({ nonBlocking: true });
      using latch = new Latch();
      latch.hold(stream);
      await produce(channel, stream);
      await assert.rejects(consumer.receive({ timeoutMs: 20 }), { name: 'TimeoutError' });
      latch.open();
      (await take(consumer)).release({ stream });
      await channel.drained({ timeoutMs: 5000 });
    } finally {
      Device.prototype.attribute = attribute;
    }
  });
});

describe('a process that writes what it likes into a channel', () => {
  test('cannot make a consumer skip messages for ever', async (t) => {
    emulate();
    using channel = Channel.create(small);
    using consumer = await sent(channel);
    const { ring } = channel.exported;
    for (const message of [0, 1]) {
      ring.record(message)?.fill(1, 0, 1);
      ring.words.advanceTo({ index: ring.filled(message).index, count: 2 ** 50 });
    }
    const timer = setInterval(() => ring.publish(ring.published + 2), 1);
    t.after(() => clearInterval(timer));
    // It depends on the moment of its poll whether it sees a slot of the next round.
    await assert.rejects(consumer.receive({ timeoutMs: 30 }), { name: /^(Ipc|Timeout)Error$/ });
  });
});
