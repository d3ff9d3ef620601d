/** What garbage collection takes of open connections, listeners, channels and timelines that a program drops. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { socketPair } from '../../../../ffi/linux/socket.ts';
import { Stream } from '../../../../src/index.ts';
import {
  Channel,
  type ChannelConsumer,
  type ConsumerSlot,
  connect,
  listen,
  Timeline,
} from '../../../../src/ipc/index.ts';
import { Peer } from '../../../../src/ipc/peer/peer.ts';
import { collectGarbage, collectUntil } from '../../../support/process-state.ts';
import { emulate, runProgram } from '../emulate.ts';
import { own, peerPair } from './peer/support.ts';

const folder = mkdtempSync(join(tmpdir(), 'cuffi-garbage-'));
process.env['XDG_RUNTIME_DIR'] = folder;
after(() => rmSync(folder, { recursive: true }));

/** Whether a promise is pending still. */
async function isPending(promise: Promise<unknown>): Promise<boolean> {
  const open = Symbol('open');
  return (await Promise.race([promise.catch(() => {}), Promise.resolve(open)])) === open;
}

type Closable = { close(): void };

describe('an open Peer that the program has dropped', () => {
  /** Makes a connection and drops one end, as `use` leaves it. */
  const dropOneEnd = (use: (dropped: Peer) => void): { kept: Peer; dropped: WeakRef<Peer> } => {
    const [first, second] = socketPair();
    const dropped = new Peer(first, own);
    use(dropped);
    return { kept: new Peer(second, own), dropped: new WeakRef(dropped) };
  };

  test('is not collected while it keeps the process alive', async () => {
    for (const use of [
      () => {},
      (peer: Peer) => {
        peer.unref();
        peer.ref();
      },
    ]) {
      const { kept, dropped } = dropOneEnd(use);
      await collectGarbage();
      assert.equal(kept.closed, false);
      assert.ok(await isPending(kept.ended));
      dropped.deref()?.close();
      await kept.ended;
      kept.close();
    }
  });

  test('is closed by garbage collection if it is not referenced', async () => {
    const { kept } = dropOneEnd((peer) => peer.unref());
    await collectUntil(() => kept.closed);
    assert.equal((await kept.ended).name, 'ClosedError');
    kept.close();
  });

  test('is collected once the other end is closed, though values were not received', async () => {
    let isCollected = false;
    const registry = new FinalizationRegistry(() => {
      isCollected = true;
    });
    const { kept } = dropOneEnd((peer) => registry.register(peer, undefined));
    await kept.send('a value');
    kept.close();
    assert.ok(await collectUntil(() => isCollected));
  });

  test('keeps its child: the child goes on with its loop', () => {
    const program = new URL('./fixtures/dropped-child.ts', import.meta.url);
    const { code, stdout, stderr } = runProgram(program, [], {}, ['--expose-gc']);
    assert.deepEqual({ code, stdout, stderr }, { code: 0, stdout: 'a value\n', stderr: '' });
  });

  test('was accepted or connected: it is not collected either, nor is the listener that waits', async () => {
    const accepted: WeakRef<Peer>[] = [];
    const start = () => {
      const listener = listen('dropped');
      const isOver = (async () => {
        for await (const peer of listener) accepted.push(new WeakRef(peer));
      })();
      return { listener: new WeakRef(listener), isOver };
    };
    const { listener, isOver } = start();
    await collectGarbage();
    const connected = new WeakRef(await connect('dropped'));
    await collectUntil(() => accepted.length === 1);
    await collectGarbage();
    assert.deepEqual([accepted[0]?.deref()?.closed, connected.deref()?.closed], [false, false]);
    connected.deref()?.close();
    await accepted[0]?.deref()?.ended;
    listener.deref()?.close();
    await isOver;
  });
});

describe('what somebody waits for', () => {
  const options = { slots: 1, shape: 4, dtype: 'uint32', deliver: 'all', ahead: true } as const;

  async function sent<T>(object: unknown): Promise<T> {
    using pair = peerPair();
    await pair.a.send(object);
    return (await pair.b.receive()) as T;
  }

  /** Producers that are open: their end would end the waits of consumers. */
  const producers: Channel[] = [];
  const newConsumer = (): Promise<ChannelConsumer> => {
    const channel = Channel.create(options);
    producers.push(channel);
    return sent(channel);
  };

  /** Begins a wait, and drops all but the promise. Returns what `end` ends the wait with. */
  const waits: Readonly<
    Record<string, () => Promise<{ waiting: Promise<unknown>; ends: readonly WeakRef<Closable>[] }>>
  > = {
    async 'Channel.acquire'() {
      const channel = Channel.create(options);
      channel.tryAcquire();
      return { waiting: channel.acquire(), ends: [new WeakRef(channel)] };
    },
    async 'Channel.drained'() {
      const channel = Channel.create(options);
      const consumer = await sent<ChannelConsumer>(channel);
      channel.tryAcquire()?.publish();
      return {
        waiting: channel.drained(),
        ends: [new WeakRef(channel), new WeakRef(consumer)],
      };
    },
    async 'ChannelConsumer.receive'() {
      const consumer = await newConsumer();
      return { waiting: consumer.receive(), ends: [new WeakRef(consumer)] };
    },
    async 'a loop over a ChannelConsumer'() {
      const consumer = await newConsumer();
      const waiting = (async () => {
        for await (const slot of consumer) slot.release();
      })();
      return { waiting, ends: [new WeakRef(consumer)] };
    },
    async 'ConsumerSlot.filled'() {
      const consumer = await newConsumer();
      const stream = Stream.create({ nonBlocking: true });
      const { value } = await consumer.ahead(stream).next();
      return { waiting: (value as ConsumerSlot).filled(), ends: [new WeakRef(consumer)] };
    },
    async 'Timeline.reached'() {
      const timeline = Timeline.create();
      return { waiting: timeline.reached(1), ends: [new WeakRef(timeline)] };
    },
    async 'Peer.receive, unreferenced'() {
      const pair = peerPair();
      pair.a.unref();
      return { waiting: pair.a.receive(), ends: [new WeakRef(pair.a), new WeakRef(pair.b)] };
    },
    async 'Peer.request, unreferenced'() {
      const pair = peerPair();
      pair.a.unref();
      return { waiting: pair.a.request(1), ends: [new WeakRef(pair.a), new WeakRef(pair.b)] };
    },
    async 'Peer.serve, unreferenced'() {
      const pair = peerPair();
      pair.a.unref();
      return { waiting: pair.a.serve(() => 1), ends: [new WeakRef(pair.a), new WeakRef(pair.b)] };
    },
    async 'Listener.accept'() {
      const listener = listen('accepting');
      return { waiting: listener.accept(), ends: [new WeakRef(listener)] };
    },
  };

  for (const [name, begin] of Object.entries(waits))
    test(`is not collected: ${name}`, async () => {
      emulate();
      const { waiting, ends } = await begin();
      await collectGarbage();
      assert.ok(await isPending(waiting));
      for (const end of ends) end.deref()?.close();
      for (const channel of producers.splice(0)) channel.close();
      await waiting.catch(({ name }: Error) => assert.equal(name, 'ClosedError'));
    });
});
