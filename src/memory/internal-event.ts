import { OUT0, readHandle } from '../../ffi/arena.ts';
import { CU_EVENT_DISABLE_TIMING } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUevent, CUstream } from '../../ffi/types.ts';
import { check, isReady } from '../check.ts';
import type { Context } from '../context.ts';
import { refuseInCapture } from '../graph-capture.ts';
import { releaseQuietly } from '../lifetime.ts';
import type { Stream } from '../stream.ts';

/** An event that cuffi itself waits for: a mark in the work of a stream, without an object. */
export class Mark implements Disposable {
  readonly context: Context;
  readonly #event: CUevent;
  readonly #resets: number;
  #isDisposed = false;

  constructor(context: Context) {
    refuseInCapture('marking work, to wait for it,');
    context.run(() => check(cu.cuEventCreate(OUT0, CU_EVENT_DISABLE_TIMING), 'cuEventCreate'));
    this.#event = readHandle<CUevent>(OUT0, cu.cuEventDestroy_v2);
    this.context = context;
    this.#resets = context.resets;
  }

  /** Marks the work queued so far in a stream of this context; by default in the legacy one. */
  record(stream: Stream | undefined): void {
    if (stream) stream.recordEvent(this.#event);
    else this.context.run(() => this.recordIn(0 as CUstream));
  }

  /** As {@link record}, in a stream without an object. */
  recordIn(stream: CUstream): void {
    check(cu.cuEventRecord(this.#event, stream), 'cuEventRecord');
  }

  /** Makes later work of a stream, of any context, wait for the marked work. */
  holdUp(stream: CUstream): void {
    check(cu.cuStreamWaitEvent(stream, this.#event, 0), 'cuStreamWaitEvent');
  }

  /** Whether the marked work is done; so it is after a reset of the context. */
  get reached(): boolean {
    return this.#isGone || isReady(cu.cuEventQuery(this.#event), 'cuEventQuery');
  }

  [Symbol.dispose](): void {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    if (this.#isGone) return;
    // Quietly, as what the mark was for has ended, and may have failed by an error that says more.
    releaseQuietly(() => check(cu.cuEventDestroy_v2(this.#event), 'cuEventDestroy_v2'));
  }

  get #isGone(): boolean {
    return this.context.resets !== this.#resets;
  }
}
