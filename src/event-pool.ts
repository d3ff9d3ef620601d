import { OUT3, readHandle } from '../ffi/arena.ts';
import { CU_EVENT_DISABLE_TIMING } from '../ffi/constants.ts';
import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUevent, CUstream } from '../ffi/types.ts';
import { check } from './check.ts';

/**
 * The events that one context records behind the work of streams. It keeps the latest event of each
 * stream, the events that fences use, and free ones. To make an event, its context must be current.
 */
export class EventPool {
  readonly #latest = new Map<CUstream, CUevent>();
  /** How many fences use an event, which is not recorded again meanwhile. */
  readonly #useCounts = new Map<CUevent, number>();
  #free: CUevent[] = [];

  /** Returns the event to record behind the next work of a stream. @throws CudaError if it cannot be made */
  eventFor(stream: CUstream): CUevent {
    const latest = this.#latest.get(stream);
    const event = latest === undefined || this.#useCounts.has(latest) ? this.#acquire() : latest;
    this.#latest.set(stream, event);
    return event;
  }

  /** Returns the events whose work is not done, and frees the others; `onStatus` receives each status. */
  pending(onStatus: (status: CUresult) => void = () => {}): CUevent[] {
    const pending: CUevent[] = [];
    for (const [stream, event] of this.#latest) {
      const status = cu.cuEventQuery(event);
      onStatus(status);
      if (status === CUresult.CUDA_ERROR_NOT_READY) pending.push(event);
      else {
        this.#latest.delete(stream);
        if (!this.#useCounts.has(event)) this.#free.push(event);
      }
    }
    return pending;
  }

  /** Counts one more use of an event by a fence. */
  retain(event: CUevent): CUevent {
    this.#useCounts.set(event, (this.#useCounts.get(event) ?? 0) + 1);
    return event;
  }

  /** Records an event behind the work of a stream, and counts one use. @throws CudaError; then none is used */
  recordAndRetain(stream: CUstream): CUevent {
    const event = this.#acquire();
    const status = cu.cuEventRecord(event, stream);
    if (status !== CUresult.CUDA_SUCCESS) this.#free.push(event);
    check(status, 'cuEventRecord');
    return this.retain(event);
  }

  /** Ends one use of an event. */
  release(event: CUevent): void {
    const useCount = this.#useCounts.get(event);
    // After a reset the driver has destroyed the event, and nothing is counted.
    if (useCount === undefined) return;
    if (useCount > 1) {
      this.#useCounts.set(event, useCount - 1);
      return;
    }
    this.#useCounts.delete(event);
    // If it is the latest event of its stream, it stays in use there.
    if (![...this.#latest.values()].includes(event)) this.#free.push(event);
  }

  /** Forgets all, as the context was reset. */
  clear(): void {
    this.#latest.clear();
    this.#useCounts.clear();
    this.#free = [];
  }

  #acquire(): CUevent {
    const free = this.#free.pop();
    if (free !== undefined) return free;
    // OUT3: the results of the tracked call are in the other slots, and not read yet.
    check(cu.cuEventCreate(OUT3, CU_EVENT_DISABLE_TIMING), 'cuEventCreate');
    return readHandle<CUevent>(OUT3, cu.cuEventDestroy_v2);
  }
}
