/**
 * Waiting for the GPU without blocking the event loop: how late the end of a wait is seen, and what
 * pending waits cost.
 */
import { stat } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { Stream } from 'cuffi';
import { Timeline } from 'cuffi/ipc';
import type { Contestant } from '../measure.ts';
import { Work } from '../ways/work.ts';
import { type Case, type OpenCase, PUBLIC } from './case.ts';
import { delays } from './event-loop.ts';

/** What users write who have no better way. */
const BY_TIMER = 'a timer of 1 ms';

async function waitByTimer(stream: Stream): Promise<void> {
  while (!stream.done) await sleep(1);
}

const synchronizeCase = (ms: number): Case => ({
  name: 'stream.synchronize',
  variant: `kernel of ${ms} ms`,
  what: `launches a kernel of ${ms} ms and waits for it; C: the same wake-up, and a CPU that spins`,
  count: { of: 'milliseconds', value: ms },
  calls: 10,
  rounds: 20,
  needsGpu: true,
  peers: [
    { peer: 'C', batch: `wait.file.${ms}` },
    { peer: 'C', batch: `wait.spinning.${ms}`, name: 'C, spinning' },
  ],
  open() {
    const work = new Work(1000 * ms);
    const stream = Stream.create({ nonBlocking: true });
    const contestant = (name: string, wait: () => Promise<void>): Contestant => ({
      name,
      async run(calls, untimed) {
        let start = 0n;
        for (let call = -untimed; call < calls; call += 1) {
          if (call === 0) start = process.hrtime.bigint();
          work.queue(stream);
          await wait();
        }
        return Number(process.hrtime.bigint() - start);
      },
    });
    return {
      contestants: [
        contestant(PUBLIC, () => stream.synchronize()),
        contestant(BY_TIMER, () => waitByTimer(stream)),
      ],
      close() {
        stream.close();
        work.close();
      },
    };
  },
});

const PENDING_MS = 1000;
const STATS = 100;

/** What is measured while waits are pending; each case has one. */
type Look = () => Promise<number | readonly number[]>;

const lateTimers: Look = () => delays(1, () => sleep(PENDING_MS));

/** CPU time of the process, in nanoseconds a millisecond. */
async function cpuTime(): Promise<number> {
  const before = process.cpuUsage();
  const begun = performance.now();
  await sleep(PENDING_MS);
  const { user, system } = process.cpuUsage(before);
  return ((user + system) * 1000) / (performance.now() - begun);
}

async function fileStatus(): Promise<number> {
  await stat('/');
  const start = process.hrtime.bigint();
  for (let call = 0; call < STATS; call += 1) await stat('/');
  return Number(process.hrtime.bigint() - start) / STATS;
}

const pendingCase = (name: string, what: string, count: number, look: Look): Case => ({
  name,
  variant: `${count} waits pending`,
  count: { of: 'waits', value: count },
  what,
  calls: 1,
  rounds: 2,
  isOnce: true,
  needsGpu: true,
  peers: [],
  open: () => openPending(count, look),
});

function openPending(count: number, look: Look): OpenCase {
  const held = Stream.create({ nonBlocking: true });
  const other = Stream.create({ nonBlocking: true });
  const timeline = Timeline.create();
  let value = 0;
  const contestant = (name: string, wait?: () => Promise<void>): Contestant => ({
    name,
    hasRun: true,
    rounds: 1,
    async run() {
      if (!wait) return look();
      value += 1;
      timeline.wait(value, { stream: held });
      const waits = Array.from({ length: count }, wait);
      // Waits poll at first.
      await sleep(50);
      const seen = await look();
      timeline.signal(value, { stream: other });
      await Promise.all(waits);
      return seen;
    },
  });
  return {
    contestants: [
      contestant(PUBLIC, () => held.synchronize()),
      contestant(BY_TIMER, () => waitByTimer(held)),
      contestant('nothing waits'),
    ],
    close() {
      for (const resource of [timeline, other, held]) resource.close();
    },
  };
}

const COUNTS = [1, 500];

export const waitingCases: readonly Case[] = [
  ...[1, 3, 10].map(synchronizeCase),
  ...COUNTS.flatMap((count) => [
    pendingCase('waits.cpu', 'CPU time of the process in a millisecond', count, cpuTime),
    pendingCase('waits.stat', 'fs.stat of a folder, awaited', count, fileStatus),
  ]),
];

/** For the suite of delays. */
export const waitingEventLoopCases: readonly Case[] = COUNTS.map((count) =>
  pendingCase('event-loop.waits', 'how late a timer of 1 ms is', count, lateTimers),
);
