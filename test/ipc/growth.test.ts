/** What one object costs does not grow with the number of others: the driver calls beside few and beside many. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { recordCalls } from '../../ffi/driver.ts';
import { CudaEvent, DeviceBuffer, MemoryPool, PinnedBuffer, Stream } from '../../src/index.ts';
import { Channel, type ChildPeer, leases, spawnPeer, Timeline } from '../../src/ipc/index.ts';
import { iterations, until } from '../support/iterations.ts';
import { programFile } from '../support/program.ts';
import { peerPair } from '../unit/src/ipc/peer/support.ts';

const deadline = { timeout: 120_000 };
const script = programFile(new URL('./fixtures/keeping.ts', import.meta.url)).path;
const [FEW, MANY] = [10, iterations(400, 1000)] as const;
/** Fewer than one call in ten of the others: they are not asked one by one. */
const MOST_MORE = (MANY - FEW) / 10;

describe('the driver calls of one object', () => {
  let child: ChildPeer;
  let pool: MemoryPool;

  before(async () => {
    child = spawnPeer(script);
    pool = MemoryPool.create({ shareable: true });
    using first = pool.allocate(64);
    await child.request({ close: first });
  });
  after(() => {
    child.close();
    pool.close();
  });

  /** What there is many of. Each returns how to close one. */
  const others: Readonly<Record<string, () => Disposable | Promise<Disposable>>> = {
    streams: () => Stream.create({ nonBlocking: true }),
    'streams that had work': () => {
      const stream = Stream.create({ nonBlocking: true });
      using buffer = DeviceBuffer.allocate(64);
      buffer.fill(1, { stream });
      stream.synchronizeSync();
      return stream;
    },
    events: () => CudaEvent.create(),
    buffers: () => DeviceBuffer.allocate(64),
    'buffers of a pool': () => pool.allocate(64),
    'buffers of a pool that another process has': async () => {
      const buffer = pool.allocate(64);
      await child.request({ keep: buffer });
      return buffer;
    },
    'pinned buffers': () => PinnedBuffer.allocate(64),
    timelines: () => Timeline.create(),
    channels: () => Channel.create({ slots: 1, byteLength: 64, deliver: 'all' }),
    connections: () => peerPair(),
  };

  const shared = async (object: DeviceBuffer): Promise<void> => {
    const before = leases.stats().leases.length;
    await child.request({ close: object });
    await until(() => leases.stats().leases.length === before);
  };

  /** What is done once. */
  const uses: Readonly<Record<string, () => Promise<void>>> = {
    'a stream that is made, used and closed': async () => {
      using buffer = DeviceBuffer.allocate(64);
      const stream = Stream.create({ nonBlocking: true });
      buffer.fill(1, { stream });
      await stream.synchronize();
      stream.close();
      await turn();
    },
    'a buffer that is allocated and closed': async () => {
      DeviceBuffer.allocate(64).close();
      await turn();
    },
    'a buffer that is sent and comes back': async () => {
      using buffer = DeviceBuffer.allocate(64);
      await shared(buffer);
    },
    'a buffer of a pool that is sent and comes back': async () => {
      using buffer = pool.allocate(64);
      await shared(buffer);
    },
    'a channel that is made and closed': async () => {
      Channel.create({ slots: 2, byteLength: 64, deliver: 'all' }).close();
      await turn();
    },
    'a timeline that a stream waits for': async () => {
      using timeline = Timeline.create();
      using stream = Stream.create({ nonBlocking: true });
      timeline.wait(1, { stream });
      timeline.signal(1);
      await stream.synchronize();
    },
  };

  /** The fewest of several times: what runs in the background makes more of them. */
  async function callsOf(use: () => Promise<void>): Promise<number> {
    let fewest = Number.POSITIVE_INFINITY;
    for (let round = 0; round < 4; round += 1) {
      using recorder = recordCalls();
      await use();
      fewest = Math.min(fewest, recorder.calls.length);
    }
    return fewest;
  }

  for (const [name, open] of Object.entries(others))
    test(`are as many beside ${MANY} ${name} as beside ${FEW}`, deadline, async () => {
      const opened: Disposable[] = [];
      const openUntil = async (count: number): Promise<void> => {
        while (opened.length < count) opened.push(await open());
      };
      await openUntil(FEW);
      const few = new Map<string, number>();
      for (const [what, use] of Object.entries(uses)) {
        await use();
        few.set(what, await callsOf(use));
      }
      await openUntil(MANY);
      for (const [what, use] of Object.entries(uses)) {
        const more = (await callsOf(use)) - (few.get(what) as number);
        assert.ok(more < MOST_MORE, `${what}: ${more} more calls`);
      }
      await child.request({ forget: true });
      for (const each of opened) each[Symbol.dispose]();
    });
});
