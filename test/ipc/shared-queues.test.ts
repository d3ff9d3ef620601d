/**
 * What cuffi calls by itself never waits for a stream that waits for another process: not even if its
 * own streams share queues of the device with the waiting ones, as they do beside other work.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, afterEach, before, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import {
  Context,
  CudaEvent,
  DeviceBuffer,
  MemoryPool,
  PinnedBuffer,
  Stream,
  VirtualMemory,
} from '../../src/index.ts';
import { Channel, type ChildPeer, leases, spawnPeer, Timeline } from '../../src/ipc/index.ts';
import { Resource } from '../../src/lifetime.ts';
import { onHardware } from '../support/driver.ts';
import { Latch } from '../support/latch.ts';
import { programFile } from '../support/program.ts';
import type { Given } from './fixtures/giver.ts';

process.env['CUFFI_EMULATED_SHARED_QUEUES'] = '1';

const MIB = 2 ** 20;
/** After this many sleeps, of a millisecond or more, a call of the emulated driver waits. */
const SLEEPS = 50;
/** In which a call returns, or is found to wait for the streams. */
const SETTLED_MS = 100;
const deadline = { timeout: 15_000 };

/** What a call needs, made before the streams wait. */
interface Made {
  readonly giver: ChildPeer;
  /** A stream without work. */
  readonly free: Stream;
  readonly pool: MemoryPool;
  readonly small: DeviceBuffer;
  readonly large: DeviceBuffer;
  /** Holds other streams up. */
  readonly latch: Latch;
}

type Closable = { close(): void };
type Call = () => unknown;

/** Asks for an object of the other process. */
async function receive({ giver, free }: Made, kind: Given): Promise<Closable> {
  await giver.send(kind, { stream: free });
  const { object } = (await giver.receive({ stream: free })) as { object: Closable };
  return object;
}

const kinds: readonly Given[] = [
  'event',
  'memory',
  'pool memory',
  'virtual memory',
  'channel',
  'another timeline',
];

const calls: Readonly<Record<string, (made: Made) => Call | Promise<Call>>> = {
  'memoryInfo()': () => () => Context.primary().memoryInfo(),
  'DeviceBuffer.allocate': () => () => DeviceBuffer.allocate(4096),
  'DeviceBuffer.close': () => {
    const buffer = DeviceBuffer.allocate(4096);
    return () => buffer.close();
  },
  '12 times DeviceBuffer.close': () => {
    const buffers = Array.from({ length: 12 }, () => DeviceBuffer.allocate(4096));
    return () => {
      for (const buffer of buffers) buffer.close();
    };
  },
  'pool.allocate in the default stream':
    ({ pool }) =>
    () =>
      pool.allocate(4096),
  'pool.allocate in a stream':
    ({ pool, free }) =>
    () =>
      pool.allocate(4096, { stream: free }),
  'close of pool memory': ({ pool }) => {
    const buffer = pool.allocate(4096);
    return () => buffer.close();
  },
  'MemoryPool.create': () => () => MemoryPool.create({ maxSize: MIB, shareable: true }),
  'MemoryPool.close': () => {
    const pool = MemoryPool.create({ maxSize: MIB, shareable: true });
    return () => pool.close();
  },
  'VirtualMemory.grow': () => {
    const memory = VirtualMemory.reserve(2 * MIB, { shareable: true });
    return () => memory.grow(2 * MIB);
  },
  'VirtualMemory.close': () => {
    const memory = VirtualMemory.reserve(2 * MIB, { shareable: true });
    memory.grow(2 * MIB);
    return () => memory.close();
  },
  'PinnedBuffer.allocate': () => () => PinnedBuffer.allocate(MIB),
  'PinnedBuffer.close': () => {
    const buffer = PinnedBuffer.allocate(MIB);
    return () => buffer.close();
  },
  'Stream.create': () => () => Stream.create({ nonBlocking: true }),
  'Stream.close': () => {
    const stream = Stream.create();
    return () => stream.close();
  },
  'CudaEvent.create': () => () => CudaEvent.create({ interprocess: true }),
  'CudaEvent.record and close': ({ free }) => {
    const event = CudaEvent.create({ interprocess: true });
    return () => {
      event.record(free);
      event.close();
    };
  },
  'Channel.create': () => () => Channel.create({ slots: 2, byteLength: 4096, deliver: 'all' }),
  'Channel.close': () => {
    const channel = Channel.create({ slots: 2, byteLength: 4096, deliver: 'all', ahead: true });
    return () => channel.close();
  },
  'Timeline.create': () => () => Timeline.create(),
  'timeline.signal in a stream, and close': ({ free, small }) => {
    const timeline = Timeline.create();
    return () => {
      small.fill(1, { stream: free });
      timeline.signal(1, { stream: free });
      timeline.close();
    };
  },
  'buffer.fill':
    ({ small, free }) =>
    () =>
      small.fill(3, { stream: free }),
  'copyToHost of 4 bytes':
    ({ small, free }) =>
    () =>
      small.copyToHost(new Uint8Array(4), { stream: free }),
  'copyFrom of 4 bytes':
    ({ small, free }) =>
    () =>
      small.copyFrom(new Uint8Array(4), { stream: free }),
  'copyToHost of 1 MiB':
    ({ large, free }) =>
    () =>
      large.copyToHost(new Uint8Array(MIB), { stream: free }),
  'copyFrom of 1 MiB':
    ({ large, free }) =>
    () =>
      large.copyFrom(new Uint8Array(MIB), { stream: free }),
  'copyToHost of 4 bytes behind the default stream':
    ({ small }) =>
    () =>
      small.copyToHost(new Uint8Array(4)),
  'stream.synchronize':
    ({ free, small }) =>
    () => {
      small.fill(3, { stream: free });
      return free.synchronize();
    },
  'context.synchronize': () => () => Context.primary().synchronize(),
  'context.flush': () => {
    const buffer = DeviceBuffer.allocate(4096);
    return () => {
      buffer.close();
      return Context.primary().flush();
    };
  },
  'send of pool memory': ({ giver, pool, free }) => {
    const buffer = pool.allocate(4096);
    return async () => {
      await giver.send({ buffer } as never, { stream: free });
      buffer.close();
    };
  },
  'send of memory, without a stream': ({ giver }) => {
    const buffer = DeviceBuffer.allocate(4096);
    return async () => {
      await giver.send({ buffer } as never);
      buffer.close();
    };
  },
  ...Object.fromEntries(
    kinds.flatMap((kind): [string, (made: Made) => Promise<Call>][] => [
      [
        `receive of ${kind}`,
        async ({ giver, free }) => {
          await giver.send(kind, { stream: free });
          return () => giver.receive({ stream: free });
        },
      ],
      [
        `close of ${kind} of another process`,
        async (made) => {
          const object = await receive(made, kind);
          return () => object.close();
        },
      ],
    ]),
  ),
  'the release of pool memory of another process behind the work that uses it': async (made) => {
    const memory = (await receive(made, 'pool memory')) as DeviceBuffer;
    const stream = Stream.create({ nonBlocking: true });
    made.latch.word.shut();
    made.latch.hold(stream);
    memory.fill(1, { stream });
    memory.close();
    return () => made.latch.open();
  },
};

/** Closes what a call has made or received. */
async function closeResult(outcome: unknown): Promise<void> {
  const result = (await outcome) as
    | (Partial<Closable> & { readonly object?: Closable })
    | undefined;
  if (result instanceof Resource) result.close();
  result?.object?.close();
}

/** Finds a call that waits in the driver, which sleeps meanwhile, and ends the wait by `release`. */
function watchSleeps(release: () => void): Disposable & { readonly blocked: string[] } {
  const { wait } = Atomics;
  const blocked: string[] = [];
  let sleeps = 0;
  Atomics.wait = ((...given: Parameters<typeof wait>) => {
    sleeps += 1;
    if (sleeps === SLEEPS) {
      blocked.push(new Error('this call waits').stack as string);
      release();
    }
    return wait(...given);
  }) as typeof wait;
  return {
    blocked,
    [Symbol.dispose]() {
      Atomics.wait = wait;
    },
  };
}

const skip = onHardware
  ? 'only the emulated driver shows that a call waits'
  : Timeline.canWait()
    ? false
    : 'the streams of this device cannot wait';

describe('beside as many waiting streams as there may be', { skip }, () => {
  let made: Made;
  let timeline: Timeline;
  let value = 0;
  const waiting = Array.from({ length: 32 }, () => Stream.create({ nonBlocking: true }));
  const other = Stream.create({ nonBlocking: true });

  before(async () => {
    // The streams of the other process are not stopped.
    const env = { ...process.env, CUFFI_EMULATED_SHARED_QUEUES: '' };
    const { path } = programFile(new URL('./fixtures/giver.ts', import.meta.url));
    const giver = spawnPeer(path, { env });
    const free = Stream.create({ nonBlocking: true });
    const pool = MemoryPool.create({ maxSize: 256 * MIB, shareable: true });
    const [small, large] = [DeviceBuffer.allocate(4), DeviceBuffer.allocate(MIB)];
    made = { giver, free, pool, small, large, latch: new Latch() };
    timeline = (await receive(made, 'timeline')) as unknown as Timeline;
    // What a connection needs for each kind, it keeps from then on.
    for (const name of Object.keys(calls)) {
      const call = await calls[name]?.(made);
      await closeResult(call?.());
      await forget();
    }
    holdStreams([Stream.legacyDefault()]);
    giver.process.kill('SIGUSR2');
    await timeline.reached(value);
  });

  afterEach(forget);

  /** Has the other process close all but its timeline, and waits for what it has of this one. */
  async function forget(): Promise<void> {
    const { giver, free } = made;
    await giver.send('forget', { stream: free });
    await giver.receive({ stream: free });
    await leases.drain({ timeoutMs: 10_000 });
  }

  after(async () => {
    made.latch[Symbol.dispose]();
    const { process: running } = made.giver;
    running.kill('SIGKILL');
    if (running.exitCode === null && running.signalCode === null) await once(running, 'exit');
    made.giver.close();
  });

  /** Makes streams wait for the next value, as many as cuffi allows. */
  function holdStreams(streams: readonly Stream[]): void {
    value += 1;
    for (const stream of streams) {
      try {
        timeline.wait(value, { stream });
      } catch (error) {
        assert.match(String(error), /too many streams of this process already wait/);
        assert.notEqual(stream, streams[0]);
        return;
      }
    }
  }

  /** Which streams wait, and how many get work after that: every second one shares a queue. */
  const ways = {
    'the default stream waits, too': () => holdStreams([Stream.legacyDefault(), ...waiting]),
    'the first stream with work shares a queue': () => holdStreams(waiting),
    'the second stream with work shares a queue': () => {
      holdStreams(waiting);
      made.small.fill(1, { stream: other });
    },
  };

  for (const [name, prepare] of Object.entries(calls))
    for (const [way, hold] of Object.entries(ways))
      test(`${name} never blocks its thread: ${way}`, deadline, async () => {
        const call = await prepare(made);
        hold();
        let isHeld = true;
        const release = (): void => {
          if (isHeld) made.giver.process.kill('SIGUSR2');
          isHeld = false;
        };
        using watch = watchSleeps(release);
        const outcome = Promise.resolve().then(call);
        await Promise.race([outcome.catch(() => {}), delay(SETTLED_MS)]);
        // Releases run in turns of the loop.
        await delay(20);
        release();
        await timeline.reached(value);
        await closeResult(outcome);
        await Context.primary().synchronize();
        assert.deepEqual(watch.blocked, []);
      });
});
