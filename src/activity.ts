/** What is known to run in a context: the one place that asks whether memory may be freed. */
import { OUT0, OUT3, readHandle } from '../ffi/arena.ts';
import { CU_EVENT_DISABLE_TIMING, CU_STREAM_LEGACY } from '../ffi/constants.ts';
import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUcontext, CUevent, CUstream } from '../ffi/types.ts';
import { check } from './check.ts';

/** The streams of one context that may have work. */
export class Activity {
  /** Streams of cuffi's own, and default ones. */
  readonly streams = new Set<CUstream>([CU_STREAM_LEGACY as CUstream]);
  /** An event behind the work that was queued in each borrowed stream. */
  readonly #marks = new Map<CUstream, CUevent>();
  /** Other contexts whose streams may still work on memory of this one. */
  readonly #visitors = new Set<Activity>();
  /** The context, if it is open. */
  readonly #context: () => CUcontext | undefined;

  constructor(context: () => CUcontext | undefined) {
    this.#context = context;
  }

  /**
   * With the context current: remembers that work was queued in a stream of another library. It
   * may be destroyed behind our back, and asking it then would crash: an event of our own is asked.
   */
  markForeign(stream: CUstream): void {
    let mark = this.#marks.get(stream);
    if (mark === undefined) {
      check(cu.cuEventCreate(OUT0, CU_EVENT_DISABLE_TIMING), 'cuEventCreate');
      mark = readHandle<CUevent>(OUT0, cu.cuEventDestroy_v2);
      this.#marks.set(stream, mark);
    }
    check(cu.cuEventRecord(mark, stream), 'cuEventRecord');
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

  /** Forgets everything, as the context was reset. */
  clear(): void {
    this.streams.clear();
    this.streams.add(CU_STREAM_LEGACY as CUstream);
    this.#marks.clear();
    this.#visitors.clear();
  }
}
