/** What cuffi says of itself: on the channels of node:diagnostics_channel, and in counters. */
import assert from 'node:assert/strict';
import { subscribe, tracingChannel, unsubscribe } from 'node:diagnostics_channel';
import { afterEach, describe, test } from 'node:test';
import { DeviceBuffer, Stream } from '../../src/index.ts';
import {
  Channel,
  type ChildPeer,
  type DiagnosticMessages,
  leases,
  PeerPool,
  type RequestTrace,
  spawnPeer,
} from '../../src/ipc/index.ts';
import { until } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { programFile } from '../support/program.ts';
import type { PoolTask } from './fixtures/pool-member.ts';

const deadline = { timeout: 60_000 };
const script = programFile(new URL('./fixtures/pool-member.ts', import.meta.url)).path;

type Name = keyof DiagnosticMessages;
type Said = { readonly [N in Name]: readonly [N, DiagnosticMessages[N]] }[Name];

const undo: (() => void)[] = [];
afterEach(() => {
  for (const each of undo.splice(0)) each();
});

/** Collects what is said on channels. */
function listen(...names: Name[]): Said[] {
  const said: Said[] = [];
  for (const name of names) {
    const note = (message: unknown): void => {
      said.push([name, message] as Said);
    };
    subscribe(name, note);
    undo.push(() => unsubscribe(name, note));
  }
  return said;
}

const start = (): ChildPeer<unknown, PoolTask> => spawnPeer<unknown, PoolTask>(script);

/** Checks that a time is one, and leaves it out. */
function withoutTimes(message: object): object {
  const { durationMs, waitedMs, ...rest } = message as Record<string, unknown>;
  for (const time of [durationMs, waitedMs])
    assert.ok(time === undefined || (typeof time === 'number' && time >= 0), String(time));
  return rest;
}

describe('diagnostics', () => {
  test('say what is sent, what arrives, and who has what for how long', deadline, async () => {
    await using child = start();
    const { pid } = child;
    using input = DeviceBuffer.allocate(4096);
    await child.request({ do: 'where' });
    const said = listen(
      'cuffi:peer:send',
      'cuffi:peer:receive',
      'cuffi:lease:begin',
      'cuffi:lease:end',
    );
    const before = child.stats();
    const answer = (await child.request({ do: 'fill', input, value: 1 })) as DeviceBuffer;
    await leases.returned(input, { timeoutMs: 10_000 });
    answer.close();
    const memory = { pid, kind: 'memory', byteLength: 4096 };
    const lengths: number[] = [];
    const told = said.map(([name, message]) => {
      const { byteLength } = message as { byteLength: number };
      if (!name.startsWith('cuffi:peer')) return [name, withoutTimes(message)];
      lengths.push(byteLength);
      return [name, { ...message, byteLength: 'some' }];
    });
    assert.deepEqual(told, [
      ['cuffi:lease:begin', memory],
      [
        'cuffi:peer:send',
        {
          pid,
          type: 'request',
          byteLength: 'some',
          objects: 1,
          kinds: ['memory'],
          sharedByteLength: 4096,
        },
      ],
      ...told.slice(2, 4).sort(([a], [b]) => String(b).localeCompare(String(a))),
    ]);
    assert.deepEqual(
      new Set(told.slice(2).map(([name]) => name)),
      new Set(['cuffi:peer:receive', 'cuffi:lease:end']),
    );
    const { sent, received, requests, unsent, waiting } = child.stats();
    assert.deepEqual(
      [
        sent.messages - before.sent.messages,
        sent.objects - before.sent.objects,
        sent.byteLength - before.sent.byteLength,
      ],
      [1, 1, lengths[0]],
    );
    assert.deepEqual(
      [
        received.messages - before.received.messages,
        received.objects,
        received.byteLength - before.received.byteLength,
      ],
      [1, 1, lengths[1]],
    );
    assert.deepEqual(
      [requests, unsent, waiting],
      [{ asked: 0, serving: 0 }, { messages: 0, byteLength: 0 }, 0],
    );
  });

  test('count what waits: requests, leases, and values that nobody reads', deadline, async () => {
    await using child = start();
    using input = DeviceBuffer.allocate(4096);
    await child.request({ do: 'where' });
    const stop = new AbortController();
    const asked = child.request({ do: 'untilAborted', input }, { signal: stop.signal });
    assert.deepEqual([child.stats().requests.asked, child.stats().leases.given], [1, 1]);
    stop.abort();
    await assert.rejects(asked, { name: 'AbortError' });
    await until(() => child.stats().requests.asked === 0);
    const large = { do: 'where', value: new Uint8Array(4 << 20) } as unknown as PoolTask;
    const many = Array.from({ length: 4 }, () => child.request(large));
    assert.ok(child.stats().unsent.byteLength > 0);
    await Promise.all(many);
    assert.equal(child.stats().unsent.messages, 0);
  });

  test('say what a channel does at both ends', deadline, async () => {
    await using child = start();
    using channel = Channel.create({ slots: 2, shape: 16, dtype: 'uint8', deliver: 'all' });
    const said = listen('cuffi:channel:publish');
    const consumed = child.request({ do: 'consume', channel: channel as never });
    await until(() => channel.consumers === 1);
    const slot = await channel.acquire();
    assert.equal(channel.stats().inUse, 1);
    slot.publish();
    const { said: there, stats } = (await consumed) as { said: unknown[]; stats: unknown };
    const message = { message: 0, byteLength: 16 };
    assert.deepEqual(said, [['cuffi:channel:publish', { channel, ...message }]]);
    assert.deepEqual(there, [
      ['cuffi:channel:receive', true, message],
      ['cuffi:channel:release', true, message],
    ]);
    assert.deepEqual(stats, { received: 1, released: 1, slots: 2 });
    await until(() => channel.stats().inUse === 0);
    assert.deepEqual([channel.stats().published, channel.stats().slots], [1, 2]);
  });

  test('say what is awaited that is not there yet, and when it has come', deadline, async () => {
    using stream = Stream.create({ nonBlocking: true });
    using latch = new Latch();
    const said = listen('cuffi:wait:begin', 'cuffi:wait:end');
    await stream.synchronize();
    assert.equal(said.length, 0);
    latch.hold(stream);
    const waiting = stream.synchronize();
    const operation = 'waiting for a stream';
    await until(() => said.length > 0);
    assert.deepEqual(said, [['cuffi:wait:begin', { operation }]]);
    latch.open();
    await waiting;
    const [name, message] = said[1] ?? assert.fail();
    assert.deepEqual(
      [name, withoutTimes(message), said.length],
      ['cuffi:wait:end', { operation }, 2],
    );
    await using child = start();
    const ofRequest = listen('cuffi:wait:begin', 'cuffi:wait:end');
    await child.request({ do: 'where' });
    assert.deepEqual(
      ofRequest.map(([name, message]) => [name, withoutTimes(message)]),
      ['begin', 'end'].map((part) => [
        `cuffi:wait:${part}`,
        { operation: `a request to process ${child.pid}` },
      ]),
    );
    using second = new Latch();
    second.hold(stream);
    const ofAborted = listen('cuffi:wait:begin', 'cuffi:wait:end');
    const aborted = stream.synchronize({ signal: AbortSignal.timeout(20) });
    await assert.rejects(aborted);
    assert.deepEqual(
      ofAborted.map(([name]) => name),
      ['cuffi:wait:begin', 'cuffi:wait:end'],
    );
    second.open();
    await stream.synchronize();
  });

  test('trace requests', deadline, async () => {
    await using child = start();
    const traced: unknown[] = [];
    const requests = tracingChannel<unknown, RequestTrace>('cuffi.request');
    const handlers = {
      start: ({ pid }: RequestTrace) => traced.push(['start', pid]),
      asyncEnd: ({ result, error }: RequestTrace) => traced.push(['end', result, String(error)]),
      error: ({ error }: RequestTrace) => traced.push(['error', String(error)]),
    };
    requests.subscribe(handlers as never);
    undo.push(() => requests.unsubscribe(handlers as never));
    assert.equal(await child.request({ do: 'aborted' }), 0);
    await assert.rejects(child.request({ do: 'fail', value: 3 }), { name: 'RangeError' });
    assert.deepEqual(traced, [
      ['start', child.pid],
      ['end', 0, 'undefined'],
      ['start', child.pid],
      ['error', 'RangeError: no 3'],
      ['end', undefined, 'RangeError: no 3'],
    ]);
  });

  test('say what becomes of the tasks of a pool, and of its processes', deadline, async () => {
    const said = listen(
      'cuffi:pool:task:queue',
      'cuffi:pool:task:begin',
      'cuffi:pool:task:end',
      'cuffi:pool:worker:start',
      'cuffi:pool:worker:serve',
      'cuffi:pool:worker:end',
    );
    const pool = PeerPool.create<unknown, PoolTask>({
      script,
      devices: [0],
      restart: { limit: 0 },
    });
    const { pid, device } = pool.stats().members[0] ?? assert.fail();
    await pool.run({ do: 'aborted' });
    await assert.rejects(pool.run({ do: 'kill' }), { name: 'PeerGoneError' });
    await until(() => pool.size === 0);
    await pool.close();
    const worker = { index: 0, pid, device: device.uuid };
    const task = { index: 0, pid, queueSize: 0 };
    const told = said.map(([name, message]) => {
      const { error, reason, ...rest } = withoutTimes(message) as Record<string, unknown>;
      return [name.slice('cuffi:pool:'.length), rest, (error ?? reason) instanceof Error];
    });
    assert.deepEqual(told.slice(0, 7), [
      ['worker:start', worker, false],
      ['task:queue', { queueSize: 1 }, false],
      ['worker:serve', worker, false],
      ['task:begin', task, false],
      ['task:end', task, false],
      ['task:queue', { queueSize: 1 }, false],
      ['task:begin', task, false],
    ]);
    // Whichever is noticed first.
    assert.deepEqual(
      new Set(told.slice(7)),
      new Set([
        ['task:end', task, true],
        ['worker:end', worker, true],
      ]),
    );
  });
});
