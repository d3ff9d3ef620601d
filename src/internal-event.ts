import { OUT0, readHandle } from '../ffi/arena.ts';
import { CU_EVENT_DISABLE_TIMING } from '../ffi/constants.ts';
import { cu } from '../ffi/driver.ts';
import type { CUevent, CUstream } from '../ffi/types.ts';
import { check, isReady } from './check.ts';
import type { Context } from './context.ts';
import type { Wait } from './deadline.ts';
import { assertNotCapturing } from './graph-capture.ts';
import { releaseOrWarn } from './lifetime.ts';
import { type ArmWakeUp, pollUntil } from './poller.ts';
import { wakeBehindEvent } from './waits/wake-up.ts';

/** The part of a stream that files below streams need. */
interface RecordingStream {
  recordEvent(event: CUevent): void;
}

/** An event that cuffi itself records and waits for, without a CudaEvent object. */
export class InternalEvent implements Disposable {
  readonly context: Context;
  readonly #event: CUevent;
  readonly #epoch: number;
  #isDisposed = false;

  constructor(context: Context) {
    assertNotCapturing('waiting for work');
    context.run(() => check(cu.cuEventCreate(OUT0, CU_EVENT_DISABLE_TIMING), 'cuEventCreate'));
    this.#event = readHandle<CUevent>(OUT0, cu.cuEventDestroy_v2);
    this.context = context;
    this.#epoch = context.epoch;
  }

  /** Returns an event that is recorded behind the work of a stream. Default: the legacy default stream. */
  static behind(context: Context, stream: RecordingStream | undefined): InternalEvent {
    const event = new InternalEvent(context);
    try {
      event.record(stream);
      return event;
    } catch (error) {
      event[Symbol.dispose]();
      throw error;
    }
  }

  /**
   * Records the event after the work queued in a stream of this context. Default: the legacy
   * default stream.
   */
  record(stream: RecordingStream | undefined): void {
    if (stream) stream.recordEvent(this.#event);
    else this.context.run(() => this.recordIn(0 as CUstream));
  }

  /** Like {@link record}, by stream handle. */
  recordIn(stream: CUstream): void {
    check(cu.cuEventRecord(this.#event, stream), 'cuEventRecord');
  }

  /** Makes later work of a stream of any context wait for the recorded work. */
  makeStreamWait(stream: CUstream): void {
    check(cu.cuStreamWaitEvent(stream, this.#event, 0), 'cuStreamWaitEvent');
  }

  /** Whether the recorded work is done. True after a reset of the context. */
  get isDone(): boolean {
    return this.#isContextReset || isReady(cu.cuEventQuery(this.#event), 'cuEventQuery');
  }

  /** What became of the recorded work; lost if the context is. */
  get progress(): 'pending' | 'done' | 'lost' {
    if (this.context.isLost) return 'lost';
    try {
      return this.isDone ? 'done' : 'pending';
    } catch {
      return 'lost';
    }
  }

  /** Wakes a wait for {@link isDone}. */
  readonly armWakeUp: ArmWakeUp = (onWake) =>
    this.#isDisposed || this.#isContextReset
      ? undefined
      : wakeBehindEvent(this, this.#event, onWake);

  [Symbol.dispose](): void {
    if (this.#isDisposed) return;
    this.#isDisposed = true;
    if (this.#isContextReset) return;
    // Only warns: the operation has ended, and may have failed with a more useful error.
    releaseOrWarn(() => check(cu.cuEventDestroy_v2(this.#event), 'cuEventDestroy_v2'));
  }

  get #isContextReset(): boolean {
    return this.context.epoch !== this.#epoch;
  }
}

/** Resolves when the work queued so far in a stream is done. Default: the legacy default stream. */
export async function workDone(
  context: Context,
  stream: RecordingStream | undefined,
  wait: Wait,
): Promise<void> {
  const event = InternalEvent.behind(context, stream);
  try {
    await pollUntil(() => event.isDone, wait, undefined, event.armWakeUp);
  } finally {
    event[Symbol.dispose]();
  }
}
