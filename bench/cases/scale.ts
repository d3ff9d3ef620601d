/** How the cost of a hand-over grows: with the processes that take part, with what is shared. */
import { type DeviceBuffer, MemoryPool } from 'cuffi';
import type { DriverChoice } from '../driver.ts';
import { Consumer, type Parcel } from '../programs/consumer.ts';
import { handOver } from '../ways/hand-over.ts';
import { warmUp } from '../ways/open.ts';
import type { Case, OpenCase } from './case.ts';

const BYTE_LENGTH = 4096;
/** How many buffers go in a message while they are set up. */
const CHUNK = 250;
const ROUNDS = 15;
/** Setting it up takes longer than measuring it. */
const PASSES = 3;
const FEW_PASSES = 2;
const MANY_BUFFERS = 10_000;
/** Before those that are timed: a process that slept is slow to wake. */
const UNTIMED = 10;

const CONSUMERS = [1, 4, 16, 64];
const MOST_CONSUMERS = 16;
const BUFFERS = [1, 10, 100, 1000, 10_000];
/** The emulated driver has no room for more. */
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
      passes: consumers < MOST_CONSUMERS ? PASSES : FEW_PASSES,
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
      passes: buffers < MANY_BUFFERS ? PASSES : FEW_PASSES,
      needsGpu: buffers > MOST_BUFFERS_WITHOUT_GPU,
      peers: [],
      open: (driver) => open(driver, { consumers: 1, buffers }),
    }),
  ),
];

async function open(
  driver: DriverChoice,
  { consumers: count, buffers: shared }: { readonly consumers: number; readonly buffers: number },
): Promise<OpenCase> {
  const pool = MemoryPool.create({ shareable: true });
  const buffers = Array.from({ length: shared }, () => pool.allocate(BYTE_LENGTH));
  const consumers = Array.from({ length: count }, () => new Consumer(driver));
  let turns = 0;
  const close = async (): Promise<void> => {
    await Promise.all(consumers.map((consumer) => consumer.end()));
    pool.close({ buffers: true });
  };
  const give = (parcel: Parcel): Promise<number> => giveToAll(consumers, parcel);
  const giveOne = (buffer: DeviceBuffer): Promise<number> =>
    give({ buffers: [buffer], keep: false });
  const nextOfThem = (): DeviceBuffer => {
    turns += 1;
    return buffers[turns % shared] as DeviceBuffer;
  };

  try {
    for (let at = 0; at < shared; at += CHUNK)
      await give({ buffers: buffers.slice(at, at + CHUNK), keep: true });
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
          give: giveOne,
          after: (buffer) => buffer.close(),
        }),
      },
      {
        name: 'mapped already',
        ...warmUp(driver, false),
        ...handOver({ buffer: nextOfThem, give: giveOne }),
      },
    ],
    close,
  };
}

/** Resolves when all have read it. @throws Error where they read different words */
async function giveToAll(consumers: readonly Consumer[], parcel: Parcel): Promise<number> {
  const words = await Promise.all(consumers.map((consumer) => consumer.take(parcel)));
  const [first = Number.NaN] = words;
  if (words.some((word) => word !== first)) throw new Error(`consumers read ${words.join(', ')}`);
  return first;
}
