/**
 * The producer of a polled hand-over. Asked for a number of rounds, it has the consumer queue them;
 * then its stream writes each round, and its CPU looks at the page until the consumer's stream has.
 * It answers with the nanoseconds that this took.
 *
 * Both programs are of the source, as the points of a connection have no public name of their own.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { driverName } from '../../ffi/driver.ts';
import { TimelinePage } from '../../src/ipc/timeline/page.ts';
import { writeCounter } from '../../src/ipc/timeline/stream-memory-operations.ts';
import { Stream } from '../../src/stream.ts';
import { type Batch, DONE, PAGE_FD, READY, type Rounds } from './polled-messages.ts';

const CONSUMER = fileURLToPath(new URL('./polled-consumer-child.ts', import.meta.url));
/** A consumer that has died is noticed after so many looks, not for ever. */
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

process.on('message', async ({ calls, untimed }: Batch) => {
  const told = once(consumer, 'message');
  consumer.send({ first: last + 1, count: untimed + calls } satisfies Rounds);
  await told;
  // The first calls after another contestant's turn are slower.
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
    // Its streams go on only when they are asked.
    if (isEmulated) void stream.done;
    if (looks > MOST_LOOKS) throw new Error(`round ${last} is not answered`);
  }
}
