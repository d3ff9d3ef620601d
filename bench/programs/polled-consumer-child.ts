/**
 * The consumer of a polled hand-over: its stream waits for each round of the producer's stream, and
 * writes that it got there. It replies when the rounds of a batch are queued.
 */
import { TimelinePage } from '../../src/ipc/timeline/page.ts';
import { waitForCounter, writeCounter } from '../../src/ipc/timeline/stream-memory-operations.ts';
import { Stream } from '../../src/stream.ts';
import { DONE, PAGE_FD, type PolledRounds, READY } from '../ways/polled.ts';

const stream = Stream.create({ nonBlocking: true });
const { context } = stream;
const page = TimelinePage.accept(PAGE_FD);
const ready = page.addressIn(context, READY);
const done = page.addressIn(context, DONE);

process.on('message', ({ first, count }: PolledRounds) => {
  for (let round = first; round < first + count; round += 1)
    stream.enqueue((queue) => {
      waitForCounter(context, queue, ready, round);
      writeCounter(context, queue, done, round);
    });
  process.send?.('queued');
});
// The producer has ended.
process.once('disconnect', () => process.exit());
process.send?.('ready');
