/** A channel that arrives from a process that sends what it likes. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { closeFd, duplicateFd } from '../../../../../ffi/linux/libc.ts';
import { createSealedMemfd } from '../../../../../ffi/linux/memfd.ts';
import { receiveMessage } from '../../../../../ffi/linux/message.ts';
import { Stream } from '../../../../../src/index.ts';
import type { HostFields } from '../../../../../src/ipc/descriptor.ts';
import { Channel, type ChannelConsumer, exportIpc } from '../../../../../src/ipc/index.ts';
import { END_OF_WAITS } from '../../../../../src/ipc/protocol.ts';
import { decodeFields, encodeFields } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { discardImported } from '../../../../../src/ipc/sharing/kinds.ts';
import { exportForAnyPeer, importFromPeer } from '../../../../../src/ipc/sharing/marshal.ts';
import { SharedWords } from '../../../../../src/ipc/timeline/words.ts';
import { until } from '../../../../support/iterations.ts';
import { Latch } from '../../../../support/latch.ts';
import { openDescriptors } from '../../../../support/process-state.ts';
import { emptySharingSession } from '../../../../support/sharing.ts';
import { emulate } from '../../emulate.ts';
import { peerPair } from '../peer/support.ts';

const small = { slots: 2, shape: 4, dtype: 'uint32', deliver: 'all' } as const;
const SEAT = 4096;

/** What a connection sends for a channel: its fields, and descriptors that the other process owns. */
function exported(channel: Channel): { fields: HostFields<'channel'>; fds: number[] } {
  const { bytes, fds } = exportForAnyPeer(channel);
  const fields = decodeFields(bytes) as HostFields<'channel'>;
  channel.exported.addSeat();
  return { fields, fds: [...channel.exported.takeSeatFds(), ...fds.map(duplicateFd)] };
}

/** As when its bytes arrive. */
const importing = (fields: HostFields<'channel'>, fds: readonly number[]): unknown =>
  importFromPeer(decodeFields(encodeFields(fields)), fds, {
    ...emptySharingSession(),
    hasLeaseOn: () => true,
  });

describe('a channel from a hostile process', () => {
  test('opens with what cuffi sends, and is closed if nobody receives it', () => {
    emulate();
    using channel = Channel.create(small);
    const { fields, fds } = exported(channel);
    using consumer = importing(fields, fds) as ChannelConsumer;
    assert.deepEqual(consumer.shape, [4]);
    discardImported(consumer);
    assert.equal(consumer.closed, true);
  });

  test('is refused with more slots than a channel has, whatever memory comes with it', async () => {
    emulate();
    using channel = Channel.create(small);
    const { fields, fds } = exported(channel);
    const slots = 2000;
    const pages = (byteLength: number): number => Math.ceil(byteLength / 4096) * 4096;
    const [, , ...rest] = fds;
    const changed = [
      createSealedMemfd('ring', pages((8 + 2 * slots) * 8 + slots * 1600)),
      createSealedMemfd('seat', pages((8 + 3 * slots) * 8)),
      ...rest,
    ];
    const memory = { ...fields.memory, byteLength: fields.memory.baseByteLength };
    assert.throws(() => importing({ ...fields, slots, memory }, changed), {
      name: 'IpcError',
      code: 'invalid-descriptor',
      message: /2000 slots/,
    });
    for (const fd of [...fds.slice(0, 2), ...changed]) closeFd(fd);
  });

  test('cannot name memory of this process that it was not given', () => {
    emulate();
    using channel = Channel.create(small);
    const { fields, fds } = exported(channel);
    assert.throws(() => importFromPeer(fields, fds, emptySharingSession()), { name: 'IpcError' });
  });

  test('cannot make the producer crash or stop, whatever it writes into its seat', async () => {
    emulate();
    for (const deliver of ['all', 'one'] as const) {
      using channel = Channel.create({ ...small, deliver });
      const { fds } = exported(channel);
      const page = SharedWords.accept(duplicateFd(fds[1] as number), 'seat', { byteLength: SEAT });
      const words = new BigUint64Array(page.bytes.buffer);
      using pair = peerPair();
      await pair.a.send(channel as unknown);
      using honest = (await pair.b.receive()) as ChannelConsumer;
      for (const word of [-1n, END_OF_WAITS, 2n ** 53n, 1n, 2n ** 53n - 1n]) {
        words.fill(BigInt.asUintN(64, word));
        const slot = await channel.acquire({ timeoutMs: 10 }).catch(() => undefined);
        slot?.publish();
        await honest.receive({ timeoutMs: 10 }).then(
          (received) => received?.release(),
          () => {},
        );
      }
      page.close();
      // It ends, and what it was granted goes to the honest one.
      for (const fd of fds) closeFd(fd);
      // Until then it may take what comes, and say that it has released it.
      await until(() => channel.consumers === 1);
      const last = channel.published;
      // The honest one may hold what it was granted while it did not wait.
      const consumed = (async () => {
        for await (const slot of honest.messages({ timeoutMs: 5000 })) {
          slot.release();
          if (slot.message >= last) return slot.meta;
        }
        return undefined;
      })();
      const acquired = await channel.acquire({ timeoutMs: 5000 });
      acquired.publish({ meta: 'last' });
      assert.equal(await consumed, 'last');
    }
  });
});

describe('the two ends of a channel', () => {
  /** How many wake-ups came through a socket since the last look. */
  const wakeUps = (receiveEnd: number): number => {
    const message = receiveMessage(receiveEnd);
    return typeof message === 'object' ? message.data.byteLength : 0;
  };

  test('a consumer that sleeps is woken up when a message is published, and when it is filled', async () => {
    emulate();
    using channel = Channel.create(small);
    const { fds } = exported(channel);
    const page = SharedWords.accept(duplicateFd(fds[1] as number), 'seat', { byteLength: SEAT });
    const words = new BigUint64Array(page.bytes.buffer);
    const receiveEnd = fds[2] as number;
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    latch.hold(stream);
    const publish = async (): Promise<void> =>
      (await channel.acquire({ timeoutMs: 1000 })).publish({ stream });
    await publish();
    assert.equal(wakeUps(receiveEnd), 0);
    words[0] = 1n;
    await publish();
    assert.equal(wakeUps(receiveEnd), 1);
    latch.open();
    let count = 0;
    await until(() => {
      count += wakeUps(receiveEnd);
      return count > 0;
    });
    for (const fd of fds) closeFd(fd);
    page.close();
  });

  test('a producer that sleeps is woken up when a slot is released, and for each grant', async () => {
    emulate();
    for (const deliver of ['all', 'one'] as const) {
      using channel = Channel.create({ ...small, deliver });
      const { fields, fds } = exported(channel);
      using consumer = importing(fields, fds) as ChannelConsumer;
      const { ring, sleepers } = channel.exported;
      let woken = 0;
      sleepers.wake = () => {
        woken += 1;
      };
      const received = consumer.receive();
      if (deliver === 'one') await until(() => woken === 1);
      (await channel.acquire()).publish();
      const slot = await received;
      const before = woken;
      ring.setProducerAsleep(true);
      slot?.release();
      await until(() => woken > before);
      assert.equal(slot?.message, 0);
      ring.setProducerAsleep(false);
    }
  });
});

describe('exporting a channel', () => {
  test('goes over connections only; a consumer cannot be sent on', async () => {
    emulate();
    using channel = Channel.create(small);
    assert.throws(() => exportIpc(channel), { name: 'IpcError', code: 'not-supported' });
    assert.throws(() => structuredClone(channel), { name: 'DataCloneError' });
    using pair = peerPair();
    await pair.a.send(channel as unknown);
    using consumer = (await pair.b.receive()) as ChannelConsumer;
    await assert.rejects(pair.b.send(consumer as unknown), { name: 'TypeError' });
  });

  test('a message that cannot be sent leaves no consumer behind', async () => {
    emulate();
    using channel = Channel.create(small);
    using pair = peerPair();
    const other = Stream.create();
    other.close();
    await assert.rejects(pair.a.send([channel, other] as unknown), {
      name: 'TypeError',
      message: /^value\[1\] is a Stream/,
    });
    pair.b.close();
    await assert.rejects(pair.a.send(channel as unknown), { name: 'ClosedError' });
    await until(() => channel.consumers === 0);
    for (let at = 0; at < 5; at += 1) (await channel.acquire({ timeoutMs: 1000 })).publish();
  });

  test('a consumer whose descriptors are never taken ends', async () => {
    emulate();
    using channel = Channel.create(small);
    const before = openDescriptors();
    const end = channel.exported.addSeat();
    assert.equal(channel.consumers, 1);
    end();
    end();
    await until(() => channel.consumers === 0 && openDescriptors() === before);
  });

  test('a consumer that never takes the channel holds nobody up once its connection ends', async () => {
    emulate();
    using channel = Channel.create(small);
    const pair = peerPair();
    await pair.a.send(channel as unknown);
    for (let at = 0; at < 2; at += 1) (await channel.acquire({ timeoutMs: 1000 })).publish();
    await assert.rejects(channel.acquire({ timeoutMs: 10 }), { name: 'TimeoutError' });
    const acquired = channel.acquire({ timeoutMs: 5000 });
    pair[Symbol.dispose]();
    assert.equal((await acquired).message, 2);
    assert.equal(channel.consumers, 0);
  });
});
