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
export class Marks {
  readonly #last = new Map<CUstream, CUevent>();
  /** How many fences hold an event: it is not recorded again meanwhile. */
  readonly #lent = new Map<CUevent, number>();
  #spare: CUevent[] = [];

  /** The event to record behind the next work of a stream. @throws CudaError where none is to be had */
  next(stream: CUstream): CUevent {
    const last = this.#last.get(stream);
    const event = last === undefined || this.#lent.has(last) ? this.#take() : last;
    this.#last.set(stream, event);
    return event;
  }

  /** The events that are not reached; gives back the others, after telling `note` of each. */
  pending(note: (status: CUresult) => void = () => {}): CUevent[] {
    const pending: CUevent[] = [];
    for (const [stream, event] of this.#last) {
      const status = cu.cuEventQuery(event);
      note(status);
      if (status === CUresult.CUDA_ERROR_NOT_READY) pending.push(event);
      else {
        this.#last.delete(stream);
        if (!this.#lent.has(event)) this.#spare.push(event);
      }
    }
    return pending;
  }

  /** Lends an event to a fence, which gives it back. */
  lend(event: CUevent): CUevent {
    this.#lent.set(event, (this.#lent.get(event) ?? 0) + 1);
    return event;
  }

  /** Lends an event, recorded behind the work of a stream. @throws CudaError; then none is lent */
  lendBehind(stream: CUstream): CUevent {
    const event = this.#take();
    const status = cu.cuEventRecord(event, stream);
    if (status !== CUresult.CUDA_SUCCESS) this.#spare.push(event);
    check(status, 'cuEventRecord');
    return this.lend(event);
  }

  /** Takes an event back that was lent. */
  takeBack(event: CUevent): void {
    const holders = this.#lent.get(event);
    // None after a reset, which has destroyed the event.
    if (holders === undefined) return;
    if (holders > 1) {
      this.#lent.set(event, holders - 1);
      return;
    }
    this.#lent.delete(event);
    // It may still be its stream's last one, and then stays it.
    if (![...this.#last.values()].includes(event)) this.#spare.push(event);
  }

  /** Forgets all, as the context was reset. */
  clear(): void {
    this.#last.clear();
    this.#lent.clear();
    this.#spare = [];
  }

  #take(): CUevent {
    const spare = this.#spare.pop();
    if (spare !== undefined) return spare;
    // OUT3: what the call that is marked leaves in the other slots is yet to be read.
    check(cu.cuEventCreate(OUT3, CU_EVENT_DISABLE_TIMING), 'cuEventCreate');
    return readHandle<CUevent>(OUT3, cu.cuEventDestroy_v2);
  }
}
