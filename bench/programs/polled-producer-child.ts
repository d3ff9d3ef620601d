/**
 * The producer of a polled hand-over. For each batch it makes the consumer queue the rounds. Then its
 * stream writes each round, and its CPU polls the page until the consumer's stream has written it. It
 * replies with the nanoseconds.
 *
 * Both programs import the source, because the counters of a connection are not public.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { driverName } from '../../ffi/driver.ts';
import { TimelinePage } from '../../src/ipc/timeline/page.ts';
import { writeCounter } from '../../src/ipc/timeline/stream-memory-operations.ts';
import { Stream } from '../../src/stream.ts';
import { DONE, PAGE_FD, type PolledBatch, type PolledRounds, READY } from '../ways/polled.ts';

const CONSUMER = fileURLToPath(new URL('./polled-consumer-child.ts', import.meta.url));
/** The producer gives up after so many polls, because the consumer may have died. */
const MOST_LOOKS = 1e9;

const stream = Stream.create({ nonBlocking: true });
const { context } = stream;
const page = TimelinePage.create();
const ready = page.addressIn(context, READY);
const isEmulated = driverName() === 'emulated';
let last = 0;

const stdio: ('ignore' | 'inherit' | 'ipc' | number)[] = ['ignore', 'inherit', 'inherit', 'ipc'];
let started: ChildProcess | undefined;
page.shareFd((fd) => {
  stdio[PAGE_FD] = fd;
  started = fork(CONSUMER, { stdio });
});
const consumer = started as unknown as ChildProcess;
consumer.once('exit', () => process.exit(1));
await once(consumer, 'message');

process.on('message', async ({ calls, untimed }: PolledBatch) => {
  const queued = once(consumer, 'message');
  consumer.send({ first: last + 1, count: untimed + calls } satisfies PolledRounds);
  await queued;
  // The first calls after another contestant's batch are slower.
  for (let call = 0; call < untimed; call += 1) handOver();
  const start = process.hrtime.bigint();
  for (let call = 0; call < calls; call += 1) handOver();
  process.send?.(Number(process.hrtime.bigint() - start));
});
process.once('disconnect', () => process.exit());
process.send?.('ready');

function handOver(): void {
  last += 1;
  const point = { index: DONE, count: last };
  if (page.isReached(point)) throw new Error(`round ${last} was done before it began`);
  stream.enqueue((queue) => writeCounter(context, queue, ready, last));
  for (let looks = 0; !page.isReached(point); looks += 1) {
    // The emulated driver makes progress when it is called.
    if (isEmulated) void stream.done;
    if (looks > MOST_LOOKS) throw new Error(`round ${last} has no reply`);
  }
}
