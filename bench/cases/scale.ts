/** How the cost of a hand-over grows with the receivers and with what they have open. */
import { DeviceBuffer, MemoryPool } from 'cuffi';
import { leases } from 'cuffi/ipc';
import type { DriverChoice } from '../results.ts';
import { Receiver } from '../ways/children.ts';
import { handOver, warmUp } from '../ways/way.ts';
import { type Case, inPeers, type OpenCase, PUBLIC, requireSuccess } from './case.ts';

const BYTE_LENGTH = 4096;
const KILLED_BYTE_LENGTH = 64 << 20;
const DRAIN_MS = 30_000;
/** Buffers per message while the case is prepared. */
const CHUNK = 250;
const ROUNDS = 15;
/** A process that slept is slow to wake. */
const UNTIMED = 10;

const CONSUMERS = [1, 4, 16, 64];
const MOST_CONSUMERS = 16;
const BUFFERS = [1, 10, 100, 1000, 10_000];
/** The emulated driver has no memory for more. */
const MOST_BUFFERS_WITHOUT_GPU = 1000;

export const scaleCases: readonly Case[] = [
  ...CONSUMERS.map(
    (consumers): Case => ({
      name: 'scale.consumers',
      variant: `${consumers}`,
      what: 'a buffer goes to so many processes at once, until each has read and acknowledged it',
      calls: 10,
      untimed: UNTIMED,
      rounds: ROUNDS,
      count: { of: 'consumers', value: consumers },
      isOnce: true,
      isLarge: consumers > MOST_CONSUMERS,
      peers: [],
      open: (driver) => open(driver, { consumers, buffers: 1 }),
    }),
  ),
  ...BUFFERS.map(
    (buffers): Case => ({
      name: 'scale.buffers',
      variant: buffers.toLocaleString('en'),
      what: 'one more buffer is sent, opened, read and acknowledged, where so many of its pool are open',
      calls: 20,
      untimed: UNTIMED,
      rounds: ROUNDS,
      count: { of: 'open buffers', value: buffers },
      isOnce: true,
      needsGpu: buffers > MOST_BUFFERS_WITHOUT_GPU,
      peers: [],
      open: (driver) => open(driver, { consumers: 1, buffers }),
    }),
  ),
  {
    name: 'receiver.killed',
    what: 'from the exit of a killed process until memory that it had mapped is free',
    calls: 1,
    rounds: 6,
    budgetMs: 10_000,
    peers: inPeers('receiver.killed', 'C'),
    open: openKilled,
  },
];

async function open(
  driver: DriverChoice,
  { consumers: count, buffers: shared }: { readonly consumers: number; readonly buffers: number },
): Promise<OpenCase> {
  const pool = MemoryPool.create({ shareable: true });
  const buffers = Array.from({ length: shared }, () => pool.allocate(BYTE_LENGTH));
  const receivers = await startAll(driver, count);
  let turns = 0;
  const close = async (): Promise<void> => {
    await Promise.all(receivers.map((receiver) => receiver.end()));
    pool.close({ buffers: true });
  };
  const give = async (buffer: DeviceBuffer): Promise<unknown> => {
    const words = await Promise.all(receivers.map((receiver) => receiver.give(buffer)));
    if (new Set(words).size > 1) throw new Error(`the receivers read ${words.join(', ')}`);
    return words[0];
  };
  const nextOfThem = (): DeviceBuffer => {
    turns += 1;
    return buffers[turns % shared] as DeviceBuffer;
  };
  try {
    for (let at = 0; at < shared; at += CHUNK)
      await Promise.all(receivers.map((one) => one.keep(...buffers.slice(at, at + CHUNK))));
  } catch (error) {
    await close();
    throw error;
  }
  return {
    contestants: [
      {
        name: 'new buffer of the pool',
        ...warmUp(driver, false),
        ...handOver({
          buffer: () => pool.allocate(BYTE_LENGTH),
          give,
          after: (buffer) => buffer.close(),
        }),
      },
      {
        name: 'mapped already',
        ...warmUp(driver, false),
        ...handOver({ buffer: nextOfThem, give }),
      },
    ],
    close,
  };
}

async function startAll(driver: DriverChoice, count: number): Promise<Receiver[]> {
  const starts = await Promise.allSettled(
    Array.from({ length: count }, () => Receiver.start(driver)),
  );
  const receivers = starts.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  const failed = starts.find((one) => one.status === 'rejected');
  if (!failed) return receivers;
  await Promise.all(receivers.map((receiver) => receiver.end()));
  throw failed.reason;
}

function openKilled(driver: DriverChoice): OpenCase {
  return {
    contestants: [{ name: PUBLIC, run: () => killReceiver(driver) }],
    verify() {
      const { orphaned } = leases.stats();
      requireSuccess(orphaned.count === 0, 'returning memory');
    },
    close() {},
  };
}

async function killReceiver(driver: DriverChoice): Promise<number> {
  const receiver = await Receiver.start(driver);
  const buffer = DeviceBuffer.allocate(KILLED_BYTE_LENGTH);
  try {
    await receiver.keep(buffer);
  } finally {
    buffer.close();
    await receiver.end();
  }
  const start = process.hrtime.bigint();
  await leases.drain({ timeoutMs: DRAIN_MS });
  return Number(process.hrtime.bigint() - start);
}
