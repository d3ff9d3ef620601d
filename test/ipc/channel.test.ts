/** Channels between real processes: every message arrives, in order, however either side ends. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { OUT0, readSize, writeStruct } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import { Device, DeviceBuffer, Stream, toDevice } from '../../src/index.ts';
import {
  Channel,
  type ChannelConsumer,
  type ConsumerSlot,
  type ProducerSlot,
} from '../../src/ipc/index.ts';
import { emulated } from '../support/driver.ts';
import { iterations, spinUntil, turns, until } from '../support/iterations.ts';
import { loadKernels } from '../support/kernels.ts';
import { Latch } from '../support/latch.ts';
import { processState } from '../support/process-state.ts';
import type { Seen, Step } from './fixtures/channels.ts';
import { placements, StepProcess, shareSteps } from './fixtures/steps.ts';

if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

const options = { timeout: 60_000 + iterations(0, 1_200_000) };
const noReachingDevice =
  Device.count > 1 && Device.get(1).canAccessPeer(0)
    ? false
    : 'needs a second GPU that reaches the first';
const program = new URL('./fixtures/channels.ts', import.meta.url);

/** A process with an end of a channel. */
class Other extends StepProcess<Step> {
  constructor(device = 0) {
    super(program, device);
  }

  consume(count?: number): Promise<Seen> {
    return this.ask({ do: 'consume', ...(count !== undefined && { count }) });
  }
}

const shared = shareSteps(3, () => new Other());

const small = { slots: 4, shape: 16, dtype: 'uint32', deliver: 'all' } as const;

async function produce(channel: Channel, stream: Stream, count: number): Promise<void> {
  for (let at = 0; at < count; at += 1) {
    const slot = await channel.acquire();
    slot.array.fill(slot.message, { stream });
    slot.publish({ stream });
  }
}

const range = (begin: number, end: number): number[] =>
  Array.from({ length: end - begin }, (_, at) => begin + at);

describe('a channel between processes', () => {
  for (const busyPollUs of [0, 200])
    test(
      `to all, busyPollUs ${busyPollUs}: three consumers see each message`,
      options,
      async () => {
        const others = shared.lend(3);
        using channel = Channel.create({ ...small, busyPollUs });
        using stream = Stream.create({ nonBlocking: true });
        for (const other of others) await other.ask({ do: 'take', channel, busyPollUs });
        assert.equal(channel.consumers, 3);
        const seen = others.map((other) => other.consume());
        const count = iterations(100, 100_000);
        await produce(channel, stream, count);
        await channel.drained();
        channel.close();
        for (const each of await Promise.all(seen))
          assert.deepEqual(each, {
            messages: range(0, count),
            wrong: [],
            redelivered: [],
            end: 'end',
          });
      },
    );

  test(
    'a late consumer starts at the next message, and holds up the producer from then on',
    options,
    async () => {
      const [other] = shared.lend();
      using channel = Channel.create(small);
      using stream = Stream.create({ nonBlocking: true });
      await produce(channel, stream, 10);
      assert.deepEqual([channel.consumers, channel.published], [0, 10]);
      await other.ask({ do: 'take', channel });
      await produce(channel, stream, 4);
      await stream.synchronize();
      assert.equal(channel.tryAcquire(), undefined);
      await assert.rejects(channel.acquire({ timeoutMs: 20 }), { name: 'TimeoutError' });
      assert.deepEqual((await other.consume(2)).messages, [10, 11]);
      await produce(channel, stream, 2);
      channel.close();
      assert.deepEqual(await other.consume(), {
        messages: range(12, 16),
        wrong: [],
        redelivered: [],
        end: 'end',
      });
    },
  );

  test(
    'a message arrives when its work is done, and its slot returns when the work that uses it is',
    options,
    async () => {
      const [other] = shared.lend();
      using channel = Channel.create({ ...small, slots: 1 });
      using stream = Stream.create({ nonBlocking: true });
      await other.ask({ do: 'take', channel });
      using latch = new Latch(stream.context);
      latch.hold(stream);
      await produce(channel, stream, 1);
      await other.ask({ do: 'begin', count: 1 });
      const seen = other.ask<Seen>({ do: 'seen' });
      assert.equal(await Promise.race([seen, turns().then(() => 'waits')]), 'waits');
      latch.open();
      assert.deepEqual((await seen).messages, [0]);
      await produce(channel, stream, 1);
      await other.ask({ do: 'keep', count: 1 });
      await other.ask({ do: 'hold' });
      await other.ask({ do: 'release' });
      assert.equal(channel.tryAcquire(), undefined);
      await other.ask({ do: 'open' });
      (await channel.acquire({ timeoutMs: 10_000 })).cancel();
    },
  );

  test(
    'to one: each message goes to one consumer; those of a killed one go to another',
    options,
    async () => {
      for (let round = 0; round < iterations(1, 100); round += 1) {
        await using first = new Other();
        const [second] = shared.lend();
        using channel = Channel.create({ ...small, deliver: 'one' });
        using stream = Stream.create({ nonBlocking: true });
        for (const other of [first, second]) await other.ask({ do: 'take', channel });
        await produce(channel, stream, 2);
        assert.deepEqual((await first.consume(1)).messages, [0]);
        assert.deepEqual((await first.ask<Seen>({ do: 'keep', count: 1 })).messages, [1]);
        await produce(channel, stream, 3);
        const seen = second.consume();
        const killing = sleep(round % 5).then(() => first.child.process.kill('SIGKILL'));
        await produce(channel, stream, 50);
        await killing;
        channel.close();
        const { messages, wrong, redelivered, end } = await seen;
        assert.deepEqual(
          [[...messages].sort((a, b) => a - b), wrong, end],
          [range(1, 55), [], 'end'],
        );
        assert.deepEqual(redelivered, [1]);
      }
    },
  );

  test('to one: the messages are shared out, and none is lost or doubled', options, async () => {
    const others = shared.lend(3);
    using channel = Channel.create({ ...small, deliver: 'one' });
    using stream = Stream.create({ nonBlocking: true });
    for (const other of others) await other.ask({ do: 'take', channel });
    const seen = others.map((other) => other.consume());
    const count = iterations(300, 100_000);
    await produce(channel, stream, count);
    await channel.drained({ timeoutMs: 30_000 });
    channel.close();
    const all = await Promise.all(seen);
    const messages = all.flatMap((each) => each.messages).sort((a, b) => a - b);
    assert.deepEqual(messages, range(0, count));
    assert.deepEqual(
      all.flatMap(({ wrong, redelivered }) => [...wrong, ...redelivered]),
      [],
    );
    assert.deepEqual(
      all.map(({ end }) => end),
      ['end', 'end', 'end'],
    );
    assert.ok(all.every((each) => each.messages.length > 0));
  });

  for (const deliver of ['all', 'one'] as const)
    test(
      `to ${deliver}: what a killed producer has not completed is not delivered`,
      options,
      async () => {
        for (let round = 0; round < iterations(1, 100); round += 1) {
          await using other = new Other();
          const channel = await consumerOf(other, { ...small, deliver });
          await other.ask({ do: 'produce', count: 2 });
          const first = await channel.receive();
          first?.release();
          await other.ask({ do: 'produceHeld', from: 2 });
          const rest: number[] = [];
          const ended = (async () => {
            for await (const slot of channel) {
              rest.push(slot.message);
              slot.release();
            }
          })();
          await sleep(round % 3);
          const killedAt = performance.now();
          other.child.process.kill('SIGKILL');
          await assert.rejects(ended, { name: 'PeerGoneError', message: /without closing it/ });
          assert.ok(performance.now() - killedAt < 1000 + 10_000 * Number(emulated));
          if (deliver === 'all') assert.deepEqual(rest, [1]);
          channel.close();
        }
      },
    );

  test('a killed consumer holds up no one', options, async () => {
    for (let round = 0; round < iterations(1, 100); round += 1) {
      await using first = new Other();
      const [second] = shared.lend();
      using channel = Channel.create(small);
      using stream = Stream.create({ nonBlocking: true });
      for (const other of [first, second]) await other.ask({ do: 'take', channel });
      const seen = second.consume();
      await produce(channel, stream, 4);
      await first.ask({ do: 'keep', count: 1 + (round % 4) });
      const blocked = produce(channel, stream, 20);
      first.child.process.kill('SIGKILL');
      await blocked;
      channel.close();
      assert.deepEqual((await seen).messages, range(0, 24));
    }
  });

  test('a consumer that closes gives its slots back', options, async () => {
    const [other] = shared.lend();
    using channel = Channel.create(small);
    using stream = Stream.create({ nonBlocking: true });
    await other.ask({ do: 'take', channel });
    await produce(channel, stream, 4);
    await other.ask({ do: 'keep', count: 4 });
    await other.ask({ do: 'close' });
    await produce(channel, stream, 8);
    await until(() => channel.consumers === 0);
    assert.equal(channel.published, 12);
  });

  test('a consumer drains what a producer published before it ended', options, async () => {
    await using other = new Other();
    const channel = await consumerOf(other, small);
    await other.ask({ do: 'produce', count: 3 });
    await other.ask({ do: 'close' });
    await other[Symbol.asyncDispose]();
    const seen: number[] = [];
    for await (const slot of channel) {
      seen.push(slot.message);
      slot.release();
    }
    assert.deepEqual(seen, [0, 1, 2]);
    assert.equal(await channel.receive(), undefined);
    channel.close();
  });

  for (const [here, there] of placements())
    test(
      `devices ${here} and ${there}: streams wait for slots on both sides`,
      options,
      async () => {
        await using apart = there === 0 ? undefined : new Other(there);
        const other = apart ?? shared.lend()[0];
        const theirs = await consumerOf(other, { ...small, slots: 2, ahead: true });
        assert.equal(theirs.device.ordinal, there);
        using stream = Stream.create({ device: here, nonBlocking: true });
        using results = DeviceBuffer.allocate(64 * 10, { device: here });
        const slots: ConsumerSlot[] = [];
        let at = 0;
        for await (const slot of theirs.ahead(stream)) {
          slot.buffer.copyTo(results.subarray(64 * at, 64 * (at + 1)), { stream });
          slot.release({ stream });
          slots.push(slot);
          at += 1;
          if (at === 10) break;
        }
        // All is queued here before anything was filled there.
        assert.equal(stream.done, false);
        await other.ask({ do: 'produceAhead', count: 10 });
        await stream.synchronize();
        const values = new Uint32Array((await results.copyToHost()).buffer);
        assert.deepEqual(
          range(0, 10),
          range(0, 10).map((message) => values[16 * message]),
        );
        assert.deepEqual(
          await Promise.all(slots.map((slot) => slot.filled())),
          slots.map(() => true),
        );
        await other.ask({ do: 'close' });
        for await (const _ of theirs.ahead(stream)) assert.fail('the channel is closed');
        theirs.close();
      },
    );

  test('another device is given access to the slots, as much as the channel allows', {
    ...options,
    skip: noReachingDevice,
  }, async () => {
    using module = loadKernels({ device: 1 });
    const saxpy = module.kernel('saxpy', ['float32', 'pointer', 'pointer', 'uint32']);
    const shape = { grid: 1, block: 32 };
    for (const readOnly of [false, true]) {
      const [other] = shared.lend();
      const channel = await consumerOf(other, { ...small, readOnly });
      await other.ask({ do: 'produce', count: 1 });
      const { array } = (await channel.receive()) as ConsumerSlot;
      const accessOf = (id: number): number => {
        const place = writeStruct('CUmemLocation', { type: 1, id });
        assert.equal(cu.cuMemGetAccess(OUT0, place, array.buffer.address as never), 0);
        return readSize(OUT0);
      };
      const own = readOnly ? 1 : 3;
      assert.deepEqual([accessOf(0), accessOf(1)], [own, 0]);
      assert.throws(() => channel.allowAccess(0), { name: 'RangeError', message: /itself/ });
      channel.allowAccess(1);
      assert.deepEqual([accessOf(0), accessOf(1)], [own, own]);
      using stream = Stream.create({ device: 1, nonBlocking: true });
      using here = DeviceBuffer.allocate(64, { device: 1 });
      array.buffer.copyTo(here, { stream });
      await stream.synchronize();
      // The array's items are 0: a kernel of device 1 reads them, and writes them if it may.
      using sums = await toDevice(new Float32Array([1, 2]), { device: 1 });
      saxpy.launch({ ...shape, stream }, 1, array, sums, 2);
      await stream.synchronize();
      assert.deepEqual(await sums.copyToHost(), new Float32Array([1, 2]));
      if (!readOnly) {
        saxpy.launch({ ...shape, stream }, 1, sums, array.buffer, 2);
        await stream.synchronize();
        const written = await array.buffer.subarray(0, 8).copyToHost();
        assert.deepEqual(new Float32Array(written.buffer), new Float32Array([1, 2]));
      }
      channel.close();
      assert.throws(() => channel.allowAccess(1), { name: 'ClosedError' });
    }
  });

  test('a producer fills slots by kernels of another device that it gave access', {
    ...options,
    skip: noReachingDevice,
  }, async () => {
    const [other] = shared.lend();
    using channel = Channel.create(small);
    await other.ask({ do: 'take', channel });
    using module = loadKernels({ device: 1 });
    const narrow = module.kernel('narrow', ['pointer']);
    using stream = Stream.create({ device: 1, nonBlocking: true });
    const seen = other.consume(4);
    const slots = [];
    for (let at = 0; at < 4; at += 1) slots.push(await channel.acquire());
    const [slot] = slots as [ProducerSlot];
    assert.throws(
      () => narrow.launch({ grid: 1, block: 1, stream }, slot.array),
      /^TypeError: argument 0 of kernel narrow .*allowAccess/,
    );
    channel.allowAccess(1);
    assert.throws(() => channel.allowAccess(0), /^RangeError: the memory is on Device 0 .* itself/);
    using near = Stream.create({ device: 0, nonBlocking: true });
    slot.array.fill(0, { stream: near });
    slot.publish({ stream: near });
    for (const each of slots.slice(1)) {
      narrow.launch({ grid: 1, block: each.message, stream }, each.array);
      each.publish({ stream });
    }
    const { messages, wrong } = await seen;
    assert.deepEqual({ messages, wrong }, { messages: range(0, 4), wrong: [] });
  });

  for (const end of ['close', 'kill'] as const)
    test(`streams that wait for slots go on after the producer's ${end}`, options, async () => {
      for (let round = 0; round < iterations(1, 100); round += 1) {
        await using ended = end === 'kill' ? new Other() : undefined;
        const other = ended ?? shared.lend()[0];
        const channel = await consumerOf(other, { ...small, ahead: true });
        using stream = Stream.create({ nonBlocking: true });
        await other.ask({ do: 'produceAhead', count: 1 });
        const ahead = channel.ahead(stream);
        const slots: ConsumerSlot[] = [];
        for (let message = 0; message < 3; message += 1) {
          const slot = (await ahead.next()).value as ConsumerSlot;
          slots.push(slot);
          slot.release({ stream });
        }
        assert.equal(stream.done, false);
        assert.equal(await slots[0]?.filled({ timeoutMs: 10_000 }), true);
        if (end === 'close') await other.ask({ do: 'close' });
        else other.child.process.kill('SIGKILL');
        await stream.synchronize();
        const filled = await Promise.allSettled(slots.map((slot) => slot.filled()));
        assert.deepEqual(
          filled.map((each) => (each.status === 'fulfilled' ? each.value : each.reason.name)),
          end === 'close' ? [true, false, false] : [true, 'PeerGoneError', 'PeerGoneError'],
        );
        if (end === 'close') assert.equal((await ahead.next()).done, true);
        else await assert.rejects(ahead.next(), { name: 'PeerGoneError' });
        channel.close();
      }
    });

  test(
    "a producer's stream goes on when a consumer that it waits for is killed",
    options,
    async () => {
      for (let round = 0; round < iterations(1, 100); round += 1) {
        await using other = new Other();
        using channel = Channel.create({ ...small, slots: 2, ahead: true });
        using stream = Stream.create({ nonBlocking: true });
        await other.ask({ do: 'take', channel });
        for (let at = 0; at < 4; at += 1) {
          const slot = await channel.acquire({ stream });
          slot.array.fill(slot.message, { stream });
          slot.publish({ stream });
        }
        assert.equal(stream.done, false);
        other.child.process.kill('SIGKILL');
        await stream.synchronize();
        await channel.drained({ timeoutMs: 10_000 });
        assert.equal(channel.consumers, 0);
      }
    },
  );

  for (const end of ['producer', 'producer of two consumers', 'consumer'] as const)
    test(
      `a host that is blocked by its waiting stream goes on when the ${end} closes`,
      options,
      async () => {
        const [other] = shared.lend();
        using stream = Stream.create({ nonBlocking: true });
        using another = Stream.create({ nonBlocking: true });
        const channels: (Channel | ChannelConsumer)[] = [];
        const waiting = [stream];
        if (end === 'consumer') {
          const channel = Channel.create({ ...small, slots: 1, ahead: true });
          channels.push(channel);
          await other.ask({ do: 'take', channel });
          (await channel.acquire({ stream })).publish({ stream });
          await channel.acquire({ stream });
        } else {
          const channel = await consumerOf(other, { ...small, ahead: true });
          channels.push(channel);
          await channel.ahead(stream).next();
          if (end === 'producer of two consumers') {
            // Its streams wait in a copy of the ring.
            const further = await other.ask<ChannelConsumer>({ do: 'again' });
            channels.push(further);
            await further.ahead(another).next();
            waiting.push(another);
          }
        }
        for (const each of waiting) assert.equal(each.done, false);
        const closed = other.ask({ do: 'close' });
        // As a call of the driver that waits for the streams: the event loop does not turn.
        for (const each of waiting) {
          spinUntil(() => each.done);
          assert.equal(each.done, true);
        }
        await closed;
        for (const channel of channels) channel.close();
      },
    );

  test('many messages: memory, descriptors and mappings stay as they are', options, async () => {
    const [other] = shared.lend();
    using channel = Channel.create({ ...small, slots: 8 });
    using stream = Stream.create({ nonBlocking: true });
    await other.ask({ do: 'take', channel });
    const count = iterations(500, 1_000_000);
    await other.ask({ do: 'begin', count: count + 200 });
    await produce(channel, stream, 100);
    await channel.drained();
    const before = processState();
    const theirs = await other.ask({ do: 'state' });
    await produce(channel, stream, count);
    await channel.drained();
    assert.deepEqual(processState(), before);
    assert.deepEqual(await other.ask({ do: 'state' }), theirs);
    await produce(channel, stream, 100);
    const { messages, wrong } = await other.ask<Seen>({ do: 'seen' });
    assert.deepEqual([messages, wrong], [range(0, count + 200), []]);
  });
});

/** A channel that another process produces, as this process consumes it. */
async function consumerOf(
  other: Other,
  init: NonNullable<Step['options']>,
): Promise<ChannelConsumer> {
  return other.ask<ChannelConsumer>({ do: 'create', options: init });
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
