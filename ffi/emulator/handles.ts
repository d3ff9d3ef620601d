/**
 * Numbers for contexts, streams, events, pools and their like: unlike each other in a whole process,
 * as the driver's are addresses, and never a default stream's.
 */
import { threadId } from 'node:worker_threads';

const STEP = 0x10;
const FIRST = 0x1000;
/** So many for each worker thread. */
const THREAD_SPAN = 2 ** 36;
/** Below the largest safe integer. */
const MAX_THREADS = 2 ** 16;

let next = FIRST + (threadId % MAX_THREADS) * THREAD_SPAN;

/** What is given a number, by the name of its C type. */
export type HandleType =
  | 'CUcontext'
  | 'CUstream'
  | 'CUevent'
  | 'CUmemoryPool'
  | 'CUmodule'
  | 'CUfunction'
  | 'CUgraph'
  | 'CUgraphExec'
  | 'CUgraphNode'
  | 'CUmemGenericAllocationHandle';

/** What the words of an error call them. */
const NOUNS: Readonly<Record<string, string>> = {
  CUcontext: 'context',
  CUstream: 'stream',
  CUevent: 'event',
  CUmemoryPool: 'pool',
  CUmodule: 'module',
  CUfunction: 'kernel',
  CUgraph: 'graph',
  CUgraphExec: 'executable graph',
};

/** What handles stand for, by number. A destroyed object's number is its successor's. */
export class Handles {
  /** By type, the numbers that were given back; the last one is given out first. */
  readonly #free = new Map<HandleType, number[]>();
  readonly #destroyed = new Map<number, HandleType>();

  make(type: HandleType): number {
    const reused = this.#free.get(type)?.pop();
    if (reused !== undefined) {
      this.#destroyed.delete(reused);
      return reused;
    }
    const handle = next;
    next += STEP;
    return handle;
  }

  /** The object of a handle is destroyed: the next one of its type gets the number. */
  release(type: HandleType, handle: number): void {
    const free = this.#free.get(type) ?? [];
    this.#free.set(type, free);
    free.push(handle);
    this.#destroyed.set(handle, type);
  }

  /** @throws Error, in place of the crash of a program, for the handle of a destroyed object */
  assertNotDestroyed(call: string, type: string, handle: number): void {
    if (this.#destroyed.get(handle) !== type) return;
    throw new Error(
      `${call}: the ${NOUNS[type] ?? type} 0x${handle.toString(16)} was destroyed: ` +
        'hardware crashes, or uses what is in its place now',
    );
  }
}
