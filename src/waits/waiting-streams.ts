/**
 * Streams that wait for another process, of all threads of this one. While a stream waits, the driver
 * blocks the callers of some functions, in whichever thread.
 */

import { serveUrgentWatches } from '../../ffi/linux/poll.ts';
import { CuffiError } from '../errors.ts';
import { pollBackgroundNow } from '../poller.ts';
import { countOtherWaitingStreams, type WaitingContext } from './worker-tables.ts';

/** A stream of this thread that may wait. */
export interface WaitingStream {
  /** Whether a wait of it is still not satisfied. */
  readonly isWaiting: boolean;
}

const waitingByContext = new WeakMap<WaitingContext, Set<WaitingStream>>();

/** The streams of this thread that may wait in a context. */
export const knownWaitingStreams = (context: WaitingContext): ReadonlySet<WaitingStream> =>
  waitingByContext.get(context) ?? NONE;

/** The streams of this thread that wait in a context. Those that no longer do are removed. */
export function waitingStreams(context: WaitingContext): ReadonlySet<WaitingStream> {
  const streams = waitingByContext.get(context);
  if (!streams) return NONE;
  for (const stream of streams) if (!stream.isWaiting) streams.delete(stream);
  return streams;
}

/** Notes that a stream of this thread waits. */
export function addWaitingStream(context: WaitingContext, stream: WaitingStream): void {
  const streams = waitingByContext.get(context) ?? new Set<WaitingStream>();
  waitingByContext.set(context, streams.add(stream));
}

const NONE: ReadonlySet<WaitingStream> = new Set();

/**
 * Whether a stream of a context waits for another process, in any thread. A call of the driver that
 * waits for the GPU may then wait for that process, too: as long as it blocks the event loop, nothing
 * here sees that the process has ended.
 */
export const hasWaitingStreams = (context: WaitingContext): boolean =>
  waitingStreams(context).size > 0 || doOtherThreadsWait(context);

/** Whether a stream of a context waits for another process, in another thread. */
export const doOtherThreadsWait = (context: WaitingContext): boolean =>
  countOtherWaitingStreams(context) > 0;

/**
 * Blocks this thread until `poll` returns true, without a call of the driver that waits. What would
 * end the waits of streams from the event loop, it does meanwhile: it watches for the ends of other
 * processes, and stores what they wait for.
 */
export function blockUntil(poll: () => boolean): void {
  const spinUntil = performance.now() + SPIN_MS;
  while (!poll()) {
    const isSpinning = performance.now() < spinUntil;
    serveUrgentWatches(isSpinning ? 0 : PERIOD_MS);
    if (!isSpinning) pollBackgroundNow();
  }
}

/** Most waits end within it. */
const SPIN_MS = 0.2;
const PERIOD_MS = 1;

/**
 * @param operation what would block, as `loading code`
 * @param remedy what to do before, in words
 * @throws CuffiError while a stream of the context waits, in any thread
 */
export function assertNoStreamWaits(
  context: WaitingContext,
  operation: string,
  remedy: string,
): void {
  const count = waitingStreams(context).size + countOtherWaitingStreams(context);
  if (count === 0) return;
  const who = count === 1 ? '1 stream waits' : `${count} streams wait`;
  throw new CuffiError(
    `${operation} would block this process: ${who} for another process. ${remedy}`,
  );
}
