/** Loops that await, again and again, what settles at once: the event loop turns all the same. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { closeFd } from '../../../../ffi/linux/libc.ts';
import {
  acceptSocket,
  closeSocket,
  connectSocket,
  listenSocket,
} from '../../../../ffi/linux/socket.ts';
import { Context, Stream } from '../../../../src/index.ts';
import {
  Channel,
  type ChannelConsumer,
  type ChannelOptions,
  connect,
  listen,
  type ProducerSlot,
  Timeline,
} from '../../../../src/ipc/index.ts';
import { nextLoopIteration } from '../../../../src/poller.ts';
import { emulate } from '../emulate.ts';
import { peerPair, RawPeer } from './peer/support.ts';

const folder = mkdtempSync(join(tmpdir(), 'cuffi-turns-'));
process.env['XDG_RUNTIME_DIR'] = folder;
after(() => rmSync(folder, { recursive: true }));

const DEADLINE_MS = 10_000;
const options = { slots: 2, byteLength: 256, deliver: 'all' } as const;

/** Keeps the thread busy. */
function work(): void {
  const begin = performance.now();
  while (performance.now() - begin < 1);
}

/** A loop that runs until a timer has fired that was set when it began, or for far too long. */
class Loop {
  readonly #until = performance.now() + DEADLINE_MS;
  #hasFired = false;

  constructor() {
    setTimeout(() => {
      this.#hasFired = true;
    }, 1);
  }

  get isOver(): boolean {
    return this.#hasFired || performance.now() > this.#until;
  }

  assertTurned(): void {
    assert.ok(this.#hasFired, 'the event loop has not turned');
  }
}

/** Both ends of a channel in this process. */
async function bothEnds(
  init: Partial<ChannelOptions> = {},
): Promise<Disposable & { channel: Channel; consumer: ChannelConsumer; stream: Stream }> {
  using pair = peerPair();
  const channel = Channel.create({ ...options, ...init });
  await pair.a.send(channel as unknown);
  const consumer = (await pair.b.receive()) as ChannelConsumer;
  const stream = Stream.create({ nonBlocking: true });
  return {
    channel,
    consumer,
    stream,
    [Symbol.dispose]() {
      for (const each of [consumer, channel, stream]) each.close();
    },
  };
}

describe('the event loop turns while a program loops over', () => {
  test('Channel.acquire, of one channel and of two at once', async () => {
    emulate();
    const produce = async (): Promise<void> => {
      using channel = Channel.create(options);
      using stream = Stream.create({ nonBlocking: true });
      const loop = new Loop();
      while (!loop.isOver) (await channel.acquire()).publish({ stream });
      loop.assertTurned();
    };
    await produce();
    await Promise.all([produce(), produce()]);
  });

  for (const deliver of ['all', 'one'] as const)
    test(`a channel to ${deliver}: acquire and receive`, async () => {
      emulate();
      using ends = await bothEnds({ deliver });
      const { channel, consumer, stream } = ends;
      // The first message of a channel to one is asked for.
      const first = consumer.receive();
      (await channel.acquire()).publish({ stream });
      (await first)?.release({ stream });
      const loop = new Loop();
      while (!loop.isOver) {
        (await channel.acquire()).publish({ stream });
        (await consumer.receive())?.release({ stream });
      }
      loop.assertTurned();
    });

  test('the messages of a channel, by for await', async () => {
    emulate();
    using ends = await bothEnds({ slots: 1024 });
    const { channel, consumer, stream } = ends;
    for (let n = 0; n < 1024; n += 1) channel.tryAcquire()?.publish({ stream });
    await stream.synchronize();
    const loop = new Loop();
    for await (const slot of consumer) {
      slot.release({ stream });
      channel.tryAcquire()?.publish({ stream });
      if (loop.isOver) break;
    }
    loop.assertTurned();
  });

  test('the slots of a channel, ahead of the stream', async () => {
    emulate();
    using ends = await bothEnds({ slots: 8, ahead: true });
    const { channel, consumer, stream } = ends;
    const slots = consumer.ahead(stream);
    const loop = new Loop();
    while (!loop.isOver) {
      channel.tryAcquire({ stream })?.publish({ stream });
      const { value } = await slots.next();
      value?.release({ stream });
      Context.primary().synchronizeSync();
    }
    loop.assertTurned();
  });

  test('Timeline.reached, ConsumerSlot.filled and Channel.drained', async () => {
    emulate();
    using ends = await bothEnds();
    const { channel, consumer, stream } = ends;
    using timeline = Timeline.create();
    (channel.tryAcquire() as ProducerSlot).publish({ stream });
    const slot = await consumer.receive();
    for (const settle of [
      () => timeline.reached(0),
      () => slot?.filled(),
      () => stream.synchronize(),
    ]) {
      const loop = new Loop();
      while (!loop.isOver) await settle();
      loop.assertTurned();
    }
    slot?.release();
    const loop = new Loop();
    while (!loop.isOver) await channel.drained();
    loop.assertTurned();
  });

  test('the values of a peer that have arrived', async () => {
    using pair = peerPair();
    for (const receive of ['receive', 'for await'] as const) {
      for (let value = 0; value < 30; value += 1) void pair.a.send(value);
      const seen: unknown[] = [];
      const loop = new Loop();
      if (receive === 'receive')
        while (!loop.isOver && seen.length < 30) {
          seen.push(await pair.b.receive());
          work();
        }
      else
        for await (const value of pair.b) {
          seen.push(value);
          work();
          if (loop.isOver || seen.length === 30) break;
        }
      loop.assertTurned();
      while (seen.length < 30) seen.push(await pair.b.receive());
      assert.deepEqual(seen, [...Array(30).keys()]);
    }
  });

  test('the requests of a peer that have arrived, with handlers that take long', async () => {
    using pair = peerPair();
    const answers = Promise.all(Array.from({ length: 30 }, (_, at) => pair.a.request(at)));
    // They come before anybody serves.
    for (let turns = 0; turns < 50; turns += 1) await nextLoopIteration();
    const loop = new Loop();
    let handledBefore = 0;
    void pair.b.serve((value) => {
      work();
      if (!loop.isOver) handledBefore += 1;
      return value;
    });
    assert.deepEqual(await answers, [...Array(30).keys()]);
    loop.assertTurned();
    assert.ok(handledBefore < 30, 'all were handled in one turn of the event loop');
  });

  test('Peer.send to a process that reads at once', async () => {
    using other = new RawPeer();
    const loop = new Loop();
    while (!loop.isOver) {
      await other.peer.send(1);
      other.receive();
    }
    loop.assertTurned();
  });

  test('connect, to a process that accepts at once', async () => {
    const name = `@cuffi-turns-${process.pid}`;
    const socket = listenSocket(name);
    const loop = new Loop();
    while (!loop.isOver) {
      (await connect(name)).close();
      closeSocket(acceptSocket(socket) as number);
    }
    closeFd(socket);
    loop.assertTurned();
  });

  test('Listener.accept, by for await, with processes that wait already', async () => {
    using listener = listen('turning');
    const clients = Array.from({ length: 30 }, () => connectSocket(listener.name));
    const loop = new Loop();
    let accepted = 0;
    for await (const peer of listener) {
      peer.close();
      work();
      accepted += 1;
      if (loop.isOver || accepted === clients.length) break;
    }
    for (const client of clients) closeFd(client);
    loop.assertTurned();
  });

  test('a channel: the end of a peer is seen meanwhile', async () => {
    emulate();
    using ends = await bothEnds();
    const { channel, consumer, stream } = ends;
    using pair = peerPair();
    setImmediate(() => pair.b.close());
    let hasEnded = false;
    void pair.a.ended.then(() => {
      hasEnded = true;
    });
    const until = performance.now() + DEADLINE_MS;
    while (!hasEnded && performance.now() < until) {
      (await channel.acquire()).publish({ stream });
      (await consumer.receive())?.release({ stream });
    }
    assert.ok(hasEnded);
  });
});

describe('Peer.receive', () => {
  test('with a time limit returns a value that has arrived, however long the loop has not turned', async () => {
    using pair = peerPair();
    for (let value = 0; value < 20; value += 1) void pair.a.send(value);
    for (let value = 0; value < 20; value += 1) {
      assert.equal(await pair.b.receive({ timeoutMs: 0 }), value);
      work();
      work();
    }
  });
});
