/** Blocking calls beside streams that wait for another process: the call itself must see that it ends. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { describe, test } from 'node:test';
import {
  Context,
  CudaEvent,
  copyPitchedSync,
  DeviceBuffer,
  deviceArray,
  Stream,
} from '../../src/index.ts';
import {
  Channel,
  type ChannelConsumer,
  type ChildPeer,
  spawnPeer,
  Timeline,
} from '../../src/ipc/index.ts';
import { killed, programFile } from '../support/program.ts';
import { StepProcess, shareSteps } from './fixtures/steps.ts';
import type { Step } from './fixtures/timelines.ts';

const options = { timeout: 60_000 };
const program = new URL('./fixtures/timelines.ts', import.meta.url);
const channelProgram = new URL('./fixtures/channels.ts', import.meta.url);
const consumerProgram = new URL('./fixtures/consumer.ts', import.meta.url);
const context = Context.primary();

/** A child that signals the timeline that is returned, if asked to. */
class Other extends StepProcess<Step> {
  constructor() {
    super(program);
  }
}

const shared = shareSteps(1, () => new Other());

function start(url: URL): ChildPeer {
  const { path, execArgv } = programFile(url);
  return spawnPeer(path, { execArgv });
}

/** Kills a process soon, while this one does not turn its event loop. */
const killSoon = (pid: number | undefined): void => {
  spawn('sh', ['-c', `sleep 0.2; kill -9 ${pid}`], { stdio: 'ignore' });
};

/** What a call needs: a stream that waits with work behind it, and what that work writes. */
interface Waiting {
  readonly stream: Stream;
  readonly buffer: DeviceBuffer;
  readonly event: CudaEvent;
}

const read = (buffer: DeviceBuffer, stream?: Stream): number =>
  (buffer.copyToHostSync(new Uint8Array(8), stream ? { stream } : {}) as Uint8Array)[7] as number;

/** Each returns what it has read, if it reads. */
const calls: Readonly<Record<string, (waiting: Waiting) => number | undefined>> = {
  'stream.synchronizeSync': ({ stream }) => void stream.synchronizeSync(),
  'event.synchronizeSync': ({ event }) => void event.synchronizeSync(),
  'context.synchronizeSync': () => void context.synchronizeSync(),
  'copyToHostSync in that stream': ({ buffer, stream }) => read(buffer, stream),
  'copyFromSync in that stream': ({ buffer, stream }) => {
    buffer.copyFromSync(new Uint8Array(8).fill(2), { stream });
    return read(buffer, stream);
  },
  'copyPitchedSync in that stream': ({ buffer, stream }) => {
    const rows = new Uint8Array(32);
    const extent = { width: 2, height: 2 };
    copyPitchedSync({ memory: rows, rowPitch: 16 }, { memory: buffer, rowPitch: 4 }, extent, {
      stream,
    });
    assert.deepEqual([...rows.subarray(14, 20)], [0, 0, 2, 2, 0, 0]);
    return rows[0];
  },
};

/** Makes a stream wait for a process in some way. What it returns is closed at the end. */
const waysToWait: Readonly<
  Record<string, (stream: Stream) => Promise<{ readonly child: ChildPeer; close(): void }>>
> = {
  'its message of a channel': async (stream) => {
    const child = start(channelProgram);
    const channel = (await child.request({
      do: 'create',
      options: { slots: 2, byteLength: 8, deliver: 'all', ahead: true },
    })) as ChannelConsumer;
    await channel.ahead(stream).next();
    return { child, close: () => channel.close() };
  },
  'its release of a slot': async (stream) => {
    const child = start(channelProgram);
    const channel = Channel.create({ slots: 1, byteLength: 8, deliver: 'all', ahead: true });
    await child.request({ do: 'take', channel });
    (await channel.acquire({ stream })).publish({ stream });
    await channel.acquire({ stream });
    return { child, close: () => channel.close() };
  },
  'its work on what it has sent': async (stream) => {
    const child = start(consumerProgram);
    await child.send({ do: 'hold' });
    await child.receive();
    await child.send({ do: 'give' });
    const buffer = (await child.receive({ stream })) as DeviceBuffer;
    return { child, close: () => buffer.close() };
  },
};

describe('a blocking call beside a stream that waits', () => {
  for (const [name, makeWait] of Object.entries(waysToWait))
    test(
      `returns when a process is killed, and the stream waits for ${name}`,
      options,
      async () => {
        using stream = Stream.create({ nonBlocking: true });
        const waiting = await makeWait(stream);
        assert.equal(stream.done, false);
        killSoon(waiting.child.process.pid);
        stream.synchronizeSync();
        await killed(waiting.child.process);
        waiting.close();
        await waiting.child.ended.catch(() => {});
      },
    );

  for (const [name, call] of Object.entries(calls))
    test(`${name} returns when the process that is waited for is killed`, options, async () => {
      await using other = new Other();
      using own = Timeline.create();
      using timeline = await other.ask<Timeline>({ do: 'take', timeline: own });
      using stream = Stream.create({ nonBlocking: true });
      using event = CudaEvent.create();
      using buffer = DeviceBuffer.allocate(8);
      buffer.fill(1);
      await context.synchronize();
      timeline.wait(1, { stream });
      buffer.fill(2, { stream });
      event.record(stream);
      killSoon(other.child.process.pid);
      const value = call({ stream, buffer, event });
      assert.equal(stream.done, true);
      if (value !== undefined) assert.equal(value, 2);
      await killed(other.child.process);
    });

  test('returns when the other process signals, with what that has written', options, async () => {
    const [other] = shared.lend();
    using own = Timeline.create();
    using timeline = await other.ask<Timeline>({ do: 'take', timeline: own });
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(8);
    for (let value = 1; value <= 3; value += 1) {
      await other.ask({ do: 'echo', value });
      timeline.wait(value, { stream });
      buffer.fill(value, { stream });
      using signaling = Stream.create({ nonBlocking: true });
      own.signal(value, { stream: signaling });
      assert.equal(read(buffer, stream), value);
    }
  });

  test('copies of the default stream do not wait for the stream that waits', options, async () => {
    const [other] = shared.lend();
    using own = Timeline.create();
    using timeline = await other.ask<Timeline>({ do: 'take', timeline: own });
    using stream = Stream.create({ nonBlocking: true });
    using buffer = DeviceBuffer.allocate(8);
    using array = deviceArray(3, 'int32');
    timeline.wait(1, { stream });
    buffer.copyFromSync(new Uint8Array(8).fill(5));
    array.copyFromSync(new Int32Array([1, 2, 3]));
    assert.equal(read(buffer), 5);
    assert.deepEqual(array.copyToHostSync(), new Int32Array([1, 2, 3]));
    assert.equal(stream.done, false);
    await other.ask({ do: 'signal', value: 1 });
    await stream.synchronize();
  });
});
