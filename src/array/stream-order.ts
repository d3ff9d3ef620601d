/** What interchange promises of order: the consumer's stream waits for the producer's. */
import type { Context } from '../context.ts';
import { Mark } from '../memory/mark.ts';
import { Stream } from '../stream.ts';

/** The stream that is meant: the legacy default one of the context where none is named. */
export const streamIn = (context: Context, stream: Stream | undefined): Stream =>
  stream ?? Stream.legacyDefault({ context });

/**
 * Makes what is queued in a stream from now on wait for what another one has been given so far.
 * Blocks nobody.
 */
export function holdUpFor(producer: Stream, consumer: Stream): void {
  // The default streams' handles say nothing without their context.
  if (producer.handle === consumer.handle && producer.context === consumer.context) return;
  const mark = new Mark(producer.context);
  try {
    mark.record(producer);
    consumer.enqueue((handle) => mark.holdUp(handle));
  } finally {
    mark[Symbol.dispose]();
  }
}
