import { OUT3, readHandle } from '../ffi/arena.ts';
import { CU_EVENT_DISABLE_TIMING } from '../ffi/constants.ts';
import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUevent, CUstream } from '../ffi/types.ts';
import { check } from './check.ts';

/**
 * Events behind the work of streams, in one context: the last one of each stream, those that fences
 * hold, and spare ones. Making one needs the context to be current.
 */
export class EventPool {
  readonly #latest = new Map<CUstream, CUevent>();
  /** How many fences hold an event: it is not recorded again meanwhile. */
  readonly #useCounts = new Map<CUevent, number>();
  #free: CUevent[] = [];

  /** The event to record behind the next work of a stream. @throws CudaError where none is to be had */
  eventFor(stream: CUstream): CUevent {
    const latest = this.#latest.get(stream);
    const event = latest === undefined || this.#useCounts.has(latest) ? this.#acquire() : latest;
    this.#latest.set(stream, event);
    return event;
  }

  /** The events that are not reached; gives back the others, after telling `note` of each. */
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

  /** Lends an event to a fence, which gives it back. */
  retain(event: CUevent): CUevent {
    this.#useCounts.set(event, (this.#useCounts.get(event) ?? 0) + 1);
    return event;
  }

  /** Lends an event, recorded behind the work of a stream. @throws CudaError; then none is lent */
  recordAndRetain(stream: CUstream): CUevent {
    const event = this.#acquire();
    const status = cu.cuEventRecord(event, stream);
    if (status !== CUresult.CUDA_SUCCESS) this.#free.push(event);
    check(status, 'cuEventRecord');
    return this.retain(event);
  }

  /** Takes an event back that was lent. */
  release(event: CUevent): void {
    const useCount = this.#useCounts.get(event);
    // None after a reset, which has destroyed the event.
    if (useCount === undefined) return;
    if (useCount > 1) {
      this.#useCounts.set(event, useCount - 1);
      return;
    }
    this.#useCounts.delete(event);
    // It may still be its stream's last one, and then stays it.
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
    // OUT3: what the call that is marked leaves in the other slots is yet to be read.
    check(cu.cuEventCreate(OUT3, CU_EVENT_DISABLE_TIMING), 'cuEventCreate');
    return readHandle<CUevent>(OUT3, cu.cuEventDestroy_v2);
  }
}
