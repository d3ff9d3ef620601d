/**
 * Numbers for contexts, streams, events and pools: never given out twice in a process, as the
 * driver's are addresses, and never a default stream's.
 */
import { threadId } from 'node:worker_threads';

const STEP = 0x10;
const FIRST = 0x1000;
/** So many for each worker thread. */
const THREAD_SPAN = 2 ** 36;
/** Below the largest safe integer. */
const MAX_THREADS = 2 ** 16;

let next = FIRST + (threadId % MAX_THREADS) * THREAD_SPAN;

/** What a handle stands for, by its number. */
export class Handles {
  make(): number {
    const handle = next;
    next += STEP;
    return handle;
  }
}
