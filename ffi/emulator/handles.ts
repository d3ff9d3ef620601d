/**
 * Handles of contexts, streams, events, pools and other objects: unique in the process, and never the
 * number of a default stream.
 */
import { threadId } from 'node:worker_threads';

const STEP = 0x10;
const FIRST = 0x1000;
/** The range of numbers of each worker thread. */
const THREAD_SPAN = 2 ** 36;
/** Keeps the numbers below the largest safe integer. */
const MAX_THREADS = 2 ** 16;

let next = FIRST + (threadId % MAX_THREADS) * THREAD_SPAN;

/** The C types of handles. */
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

/** Their names in error messages. */
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

/** Assigns handles. The next object of a type reuses the handle of a destroyed one. */
export class Handles {
  /** Free numbers by type. The last is reused first. */
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

  /** Frees the handle of a destroyed object for the next one of its type. */
  release(type: HandleType, handle: number): void {
    const free = this.#free.get(type) ?? [];
    this.#free.set(type, free);
    free.push(handle);
    this.#destroyed.set(handle, type);
  }

  /** @throws Error for the handle of a destroyed object, where hardware may crash */
  assertNotDestroyed(call: string, type: string, handle: number): void {
    if (this.#destroyed.get(handle) !== type) return;
    throw new Error(
      `${call}: the ${NOUNS[type] ?? type} 0x${handle.toString(16)} was destroyed: ` +
        'hardware would crash, or use another object with this handle',
    );
  }
}
