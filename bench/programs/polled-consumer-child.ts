/**
 * The consumer of a polled hand-over: its stream waits for the producer's, and says that it got
 * there. It queues the rounds that it is told of, and answers when it has.
 */
import { TimelinePage } from '../../src/ipc/timeline/page.ts';
import { waitForCounter, writeCounter } from '../../src/ipc/timeline/stream-memory-operations.ts';
import { Stream } from '../../src/stream.ts';
import { DONE, PAGE_FD, READY, type Rounds } from './polled-messages.ts';

const stream = Stream.create({ nonBlocking: true });
const { context } = stream;
const page = TimelinePage.accept(PAGE_FD);
const ready = page.addressIn(context, READY);
const done = page.addressIn(context, DONE);

process.on('message', ({ first, count }: Rounds) => {
  for (let round = first; round < first + count; round += 1)
    stream.enqueue((queue) => {
      waitForCounter(context, queue, ready, round);
      writeCounter(context, queue, done, round);
    });
  process.send?.('queued');
});
// Whatever became of the producer: nobody writes any more.
process.once('disconnect', () => process.exit());
process.send?.('ready');
