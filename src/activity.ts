/** What is known to run in a context: the one place that asks whether memory may be freed. */
import { OUT0, OUT3, readHandle } from '../ffi/arena.ts';
import { CU_EVENT_DISABLE_TIMING, CU_STREAM_LEGACY } from '../ffi/constants.ts';
import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUcontext, CUevent, CUstream } from '../ffi/types.ts';
import { check } from './check.ts';
import { Fence } from './fence.ts';

const LEGACY = CU_STREAM_LEGACY as CUstream;

/** The streams of one context that may have work. */
export class Activity {
  /** Streams of cuffi's own, and default ones. */
  readonly streams = new Set<CUstream>([LEGACY]);
  /** An event behind the work in each stream where none may be recorded later: see {@link mark}. */
  readonly #marks = new Map<CUstream, CUevent>();
  /** Other contexts whose streams may still work on memory of this one. */
  readonly #visitors = new Set<Activity>();
  /** How many fences hold an event: it is not recorded again meanwhile. */
  readonly #lent = new Map<CUevent, number>();
  #spare: CUevent[] = [];
  /** The context, if it is open. */
  readonly #context: () => CUcontext | undefined;

  constructor(context: () => CUcontext | undefined) {
    this.#context = context;
  }

  /**
   * With the context current: remembers that work was queued just now in a stream where no event
   * may be recorded later. A borrowed stream may be destroyed behind our back, and asking it then
   * would crash. The legacy default stream makes the blocking streams wait for each other: right
   * behind work there an event adds nothing to that, later it would.
   */
  mark(stream: CUstream): void {
    const existing = this.#marks.get(stream);
    const event = existing === undefined || this.#lent.has(existing) ? this.#takeEvent() : existing;
    this.#marks.set(stream, event);
    check(cu.cuEventRecord(event, stream), 'cuEventRecord');
  }

  /** Remembers that work on memory of this context was queued in a stream of another. */
  visitedBy(other: Activity): void {
    if (other !== this) this.#visitors.add(other);
  }

  /** Whether no work is known to run that may touch memory of this context. */
  isUntouched(): boolean {
    if (!this.isIdle()) return false;
    for (const visitor of this.#visitors) {
      if (!visitor.isIdle()) return false;
      // Forgotten as soon as it is done: a borrowed context may be destroyed any time after, and
      // the driver crashes when a destroyed one is pushed.
      this.#visitors.delete(visitor);
    }
    return true;
  }

  /** Whether no work is known to run; what is broken or gone has none. */
  isIdle(): boolean {
    return this.poll() !== CUresult.CUDA_ERROR_NOT_READY;
  }

  /** Success, not ready, or the first error of the work. */
  poll(): CUresult {
    const context = this.#context();
    if (context === undefined) return CUresult.CUDA_SUCCESS;
    const pushed = cu.cuCtxPushCurrent_v2(context);
    if (pushed !== CUresult.CUDA_SUCCESS) return pushed;
    let worst: CUresult = CUresult.CUDA_SUCCESS;
    const note = (status: CUresult): void => {
      if (status === CUresult.CUDA_ERROR_NOT_READY || worst === CUresult.CUDA_SUCCESS)
        worst = status;
    };
    for (const stream of this.streams) note(cu.cuStreamQuery(stream));
    for (const mark of this.#marks.values()) note(cu.cuEventQuery(mark));
    cu.cuCtxPopCurrent_v2(OUT3);
    return worst;
  }

  /** The work that is known to be queued now and may touch memory of this context. */
  fence(): Fence {
    const giveBack = (event: CUevent): void => this.#takeBack(event);
    const visitors = [...this.#visitors];
    const context = this.#context();
    if (context === undefined || cu.cuCtxPushCurrent_v2(context) !== CUresult.CUDA_SUCCESS)
      return new Fence([], visitors, giveBack);
    const events: CUevent[] = [];
    try {
      for (const mark of this.#marks.values()) if (isPending(mark)) events.push(this.#lend(mark));
      for (const stream of this.streams) {
        if (stream === LEGACY || !isBusy(stream)) continue;
        const event = this.#lend(this.#takeEvent());
        events.push(event);
        check(cu.cuEventRecord(event, stream), 'cuEventRecord');
      }
      return new Fence(events, visitors, giveBack);
    } catch {
      // No event to be had: the coarse question remains.
      events.forEach(giveBack);
      return new Fence([], [this, ...visitors], giveBack);
    } finally {
      cu.cuCtxPopCurrent_v2(OUT3);
    }
  }

  /** Forgets everything, as the context was reset. */
  clear(): void {
    this.streams.clear();
    this.streams.add(LEGACY);
    this.#marks.clear();
    this.#visitors.clear();
    this.#lent.clear();
    this.#spare = [];
  }

  #takeEvent(): CUevent {
    const spare = this.#spare.pop();
    if (spare !== undefined) return spare;
    check(cu.cuEventCreate(OUT0, CU_EVENT_DISABLE_TIMING), 'cuEventCreate');
    return readHandle<CUevent>(OUT0, cu.cuEventDestroy_v2);
  }

  #lend(event: CUevent): CUevent {
    this.#lent.set(event, (this.#lent.get(event) ?? 0) + 1);
    return event;
  }

  #takeBack(event: CUevent): void {
    const holders = this.#lent.get(event);
    // None after a reset, which has destroyed the event.
    if (holders === undefined) return;
    if (holders > 1) {
      this.#lent.set(event, holders - 1);
      return;
    }
    this.#lent.delete(event);
    // A mark that a fence held may still be its stream's last one, and then stays it.
    if (![...this.#marks.values()].includes(event)) this.#spare.push(event);
  }
}

const isPending = (event: CUevent): boolean =>
  cu.cuEventQuery(event) === CUresult.CUDA_ERROR_NOT_READY;

const isBusy = (stream: CUstream): boolean =>
  cu.cuStreamQuery(stream) === CUresult.CUDA_ERROR_NOT_READY;
