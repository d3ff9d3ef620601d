/**
 * How late timers are while memory is copied: the delay that another request of the same server
 * would have.
 *
 * perf_hooks.monitorEventLoopDelay does not fit. It counts a blocked second as one sample, and its
 * samples include the millisecond between two of them. Here each sample is the delay of one timer,
 * and a delay during which several timers were due counts once for each.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { DeviceBuffer, PinnedBuffer } from 'cuffi';
import type { Contestant } from '../measure.ts';
import type { DriverChoice } from '../results.ts';
import { requirePattern, writePattern } from '../ways/pattern.ts';
import type { Case, OpenCase } from './case.ts';

const MIB = 1 << 20;
const BYTE_LENGTH = 1024 * MIB;
const EMULATED_BYTE_LENGTH = 16 * MIB;
const COPIES = 10;
/** One for each process of a run. */
const TURNS = 3;
const PERIOD_MS = 1;
const IDLE_MS = 500;

export const eventLoopCases: readonly Case[] = [
  {
    name: 'event-loop',
    what: `how late a timer of 1 ms is while 1 GiB is copied ${COPIES} times, awaited`,
    calls: COPIES,
    // Each contestant runs once in each process, without an untimed round.
    rounds: 2 * TURNS,
    peers: [],
    open,
  },
];

function open({ emulated }: DriverChoice): OpenCase {
  // The emulated driver copies on the main thread.
  const byteLength = emulated ? EMULATED_BYTE_LENGTH : BYTE_LENGTH;
  const buffer = DeviceBuffer.allocate(byteLength);
  const pinned = PinnedBuffer.allocate(byteLength);
  const hosts = {
    'an ordinary typed array': new Uint8Array(byteLength),
    'a PinnedBuffer': new Uint8Array(pinned.buffer),
  };
  for (const host of Object.values(hosts)) writePattern(host);
  const contestant = (name: string, run: (calls: number) => Promise<number[]>): Contestant => ({
    name,
    hasRun: true,
    rounds: TURNS,
    run,
  });
  return {
    contestants: [
      contestant('nothing is copied', () => delays(1, () => sleep(IDLE_MS))),
      ...Object.entries(hosts).flatMap(([name, host]) => [
        contestant(`copyFrom, ${name}`, (calls) => delays(calls, () => buffer.copyFrom(host))),
        contestant(`copyToHost, ${name}`, async (calls) => {
          host.fill(0);
          const late = await delays(calls, () => buffer.copyToHost(host));
          requirePattern(host, name);
          return late;
        }),
      ]),
    ],
    close() {
      buffer.close();
      pinned.close();
    },
  };
}

/** Nanoseconds by which each timer was late while `work` ran so many times. */
export async function delays(calls: number, work: () => Promise<unknown>): Promise<number[]> {
  const periodNs = PERIOD_MS * 1e6;
  const samples: number[] = [];
  let last = process.hrtime.bigint();
  const sample = (): void => {
    const now = process.hrtime.bigint();
    const delay = Math.max(0, Number(now - last) - periodNs);
    for (let late = delay; late >= 0; late -= periodNs) samples.push(late);
    last = now;
  };
  const timer = setInterval(sample, PERIOD_MS);
  try {
    for (let call = 0; call < calls; call += 1) await work();
  } finally {
    clearInterval(timer);
    // Timers that were due when the work ended.
    sample();
  }
  return samples;
}
