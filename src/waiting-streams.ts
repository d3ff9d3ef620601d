/**
 * Streams that wait for another process, of all threads of this one. While a stream waits, the driver
 * blocks the callers of some functions, in whichever thread.
 */

import { libc } from '../ffi/linux/libc.ts';
import { serveUrgentWatches } from '../ffi/linux/poll.ts';
import { addressOf } from '../ffi/native.ts';
import { threadId } from '../ffi/thread.ts';
import type { Address, CUcontext } from '../ffi/types.ts';
import { CuffiError } from './errors.ts';
import { pollBackgroundNow } from './poller.ts';
import { mayHaveOtherUsers, withWaitsTable } from './worker-counts.ts';

/** A stream of this thread that may wait. */
export interface WaitingStream {
  /** Whether a wait of it is still not satisfied. */
  readonly isWaiting: boolean;
}

/** A context, as far as it matters here. */
interface WaitingContext {
  readonly handle: CUcontext;
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
  waitingStreams(context).size > 0 || countOtherWaitingStreams(context) > 0;

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

// ---- The waits of other threads ----

/**
 * A record is six numbers: the context's handle (0 for a free record), the thread, the stream's number
 * in that thread, the address of the awaited word, and the two halves of the awaited value.
 */
const RECORD_LENGTH = 6;
const THREAD = 1;
const STREAM = 2;
const ADDRESS = 3;
const HIGH = 4;
const LOW = 5;
/** The first record is a header: where the used records end. */
const END_OFFSET = 0;
/** More waits than streams of one process can have. Later waits are not visible to other threads. */
const MAX_WAITS = 4096;

/** Shows a wait of this thread to the others. Returns what {@link hideWait} needs. */
export function showWait(
  context: WaitingContext,
  stream: number,
  address: Address,
  value: number,
): number {
  const { handle } = context;
  return withWaitsTable((table) => {
    const end = (table[END_OFFSET] as number) || RECORD_LENGTH;
    let at = RECORD_LENGTH;
    while (at < end && table[at] !== 0) at += RECORD_LENGTH;
    if (at >= MAX_WAITS * RECORD_LENGTH) return 0;
    table[at + THREAD] = threadId();
    table[at + STREAM] = stream;
    table[at + ADDRESS] = address;
    table[at + HIGH] = Math.floor(value / 2 ** 32);
    table[at + LOW] = value >>> 0;
    table[at] = handle;
    if (at === end) table[END_OFFSET] = end + RECORD_LENGTH;
    return at;
  });
}

/** Hides a wait that is satisfied. Must come before its page is unmapped. */
export function hideWait(shown: number): void {
  if (shown === 0) return;
  withWaitsTable((table) => {
    table[shown] = 0;
  });
}

/**
 * Returns how many streams of other threads wait in a context. A thread that was terminated leaves its
 * records and its mappings: the words in them tell when its streams no longer wait.
 */
export function countOtherWaitingStreams(context: WaitingContext): number {
  if (!mayHaveOtherUsers()) return 0;
  const { handle } = context;
  return withWaitsTable((table) => {
    const streams = new Set<string>();
    const end = table[END_OFFSET] as number;
    for (let at = RECORD_LENGTH; at < end; at += RECORD_LENGTH) {
      if (table[at] !== handle || table[at + THREAD] === threadId()) continue;
      if (isSatisfied(table, at)) continue;
      streams.add(`${table[at + THREAD]} ${table[at + STREAM]}`);
    }
    return streams.size;
  });
}

const word = new BigUint64Array(1);

/** Compares as devices do: signed and cyclic. */
function isSatisfied(table: Float64Array, at: number): boolean {
  libc.memmove(addressOf(word), table[at + ADDRESS] as number, 8);
  const value = (BigInt(table[at + HIGH] as number) << 32n) + BigInt(table[at + LOW] as number);
  return BigInt.asIntN(64, (word[0] as bigint) - value) >= 0n;
}
