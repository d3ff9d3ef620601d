/** How the cost of a hand-over grows: with the processes that take part, with what is shared. */
import { type DeviceBuffer, MemoryPool, Stream } from 'cuffi';
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';
import { Consumer } from '../programs/consumer.ts';
import type { Case, OpenCase } from './case.ts';

const BYTE_LENGTH = 4096;
/** How many buffers go in a message while they are set up. */
const CHUNK = 250;
const ROUNDS = 15;

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
      rounds: ROUNDS,
      count: { of: 'consumers', value: consumers },
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
      rounds: ROUNDS,
      count: { of: 'open buffers', value: buffers },
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
  const stream = Stream.create({ nonBlocking: true });
  const pool = MemoryPool.create({ shareable: true });
  const allocate = (): DeviceBuffer => pool.allocate(BYTE_LENGTH, { stream });
  const buffers = Array.from({ length: shared }, allocate);
  const consumers = Array.from({ length: count }, () => new Consumer(driver));
  let turns = 0;

  const write = (buffer: DeviceBuffer): number => {
    turns += 1;
    const value = turns % 256;
    buffer.fill(value, { stream });
    stream.synchronizeSync();
    return value;
  };
  const toAll = async (parcel: Parameters<Consumer['take']>[0], value: number): Promise<void> => {
    await Promise.all(consumers.map((consumer) => consumer.take(parcel, value)));
  };
  const close = async (): Promise<void> => {
    await Promise.all(consumers.map((consumer) => consumer.end()));
    pool.close({ buffers: true });
    stream.close();
  };

  const handOver = (
    name: string,
    next: () => DeviceBuffer,
    done: (of: DeviceBuffer) => void,
  ): Contestant => ({
    name,
    async run(calls) {
      let ns = 0n;
      for (let call = 0; call < calls; call += 1) {
        const buffer = next();
        const value = write(buffer);
        const start = process.hrtime.bigint();
        await toAll({ buffers: [buffer], keep: false }, value);
        ns += process.hrtime.bigint() - start;
        done(buffer);
      }
      return Number(ns);
    },
  });

  try {
    for (let at = 0; at < shared; at += CHUNK) {
      const chunk = buffers.slice(at, at + CHUNK);
      await toAll({ buffers: chunk, keep: true }, write(chunk.at(-1) as DeviceBuffer));
    }
  } catch (error) {
    await close();
    throw error;
  }
  return {
    contestants: [
      handOver('new buffer of the pool', allocate, (buffer) => buffer.close()),
      handOver(
        'mapped already',
        () => buffers[turns % shared] as DeviceBuffer,
        () => {},
      ),
    ],
    close,
  };
}
