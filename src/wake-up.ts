/**
 * Wakes waits when the GPU is done, without polling and without a thread: the driver calls `fflush` in a
 * stream of cuffi's own, behind an event. A host function in the user's stream would delay its work.
 */

import { OUT3, readHandle, readUint32 } from '../ffi/arena.ts';
import {
  CU_EVENT_DISABLE_TIMING,
  CU_STREAM_CAPTURE_STATUS_NONE,
  CU_STREAM_NON_BLOCKING,
} from '../ffi/constants.ts';
import { cu } from '../ffi/driver.ts';
import { fflushAddress, takeWakeFile } from '../ffi/linux/wake-file.ts';
import { CUresult } from '../ffi/results.ts';
import type { Address, CUevent, CUstream } from '../ffi/types.ts';
import type { Context } from './context.ts';
import { isCapturing } from './graph-capture.ts';
import { countOtherWaitingStreams, waitingStreams } from './waiting-streams.ts';

const { CUDA_SUCCESS } = CUresult;

/** What a wait waits for: a stream or an event. */
interface Awaited {
  readonly context: Context;
}

/**
 * Calls `onWake` on the event loop when the work queued so far in a stream is done. The process is not kept
 * alive. Returns a function that cancels the call, or undefined if the caller must poll.
 */
export const wakeBehindStream = (
  stream: Awaited,
  handle: CUstream,
  onWake: () => void,
): (() => void) | undefined =>
  wakerOf(stream.context)?.arm(stream, onWake, (event) =>
    isCaptured(handle) || cu.cuEventRecord(event, handle) !== CUDA_SUCCESS ? undefined : event,
  );

/** As {@link wakeBehindStream}, for the work that an event was recorded behind. */
export const wakeBehindEvent = (
  event: Awaited,
  handle: CUevent,
  onWake: () => void,
): (() => void) | undefined => wakerOf(event.context)?.arm(event, onWake, () => handle);

/**
 * While more streams wait for other processes, waits are polled: a stream of cuffi's own takes the place
 * of one more, and from four on streams that have nothing to do with any of them stood still (H100).
 */
const MAX_WAITING_STREAMS = 2;

const wakers = new WeakMap<Context, Waker>();

function wakerOf(context: Context): Waker | undefined {
  // The owner of a borrowed context may destroy it at any time, and the driver crashes when a destroyed
  // context is pushed. During a capture the driver's calls would become a part of the graph.
  if (context.borrowed || context.isLost || isCapturing()) return undefined;
  if (waitingStreams(context).size + countOtherWaitingStreams(context) > MAX_WAITING_STREAMS)
    return undefined;
  let waker = wakers.get(context);
  if (!waker || waker.epoch !== context.epoch) {
    waker = new Waker(context);
    wakers.set(context, waker);
  }
  return waker;
}

const isCaptured = (stream: CUstream): boolean =>
  cu.cuStreamIsCapturing(stream, OUT3) !== CUDA_SUCCESS ||
  readUint32(OUT3) !== CU_STREAM_CAPTURE_STATUS_NONE;

/** Whom a pending call of `fflush` wakes. */
interface PendingWakeUp {
  readonly awaited: Awaited;
  readonly listeners: Set<() => void>;
}

/**
 * The wake-ups of one context, until its reset. It has one stream, in which one function is pending at a
 * time: with eight streams that wait, no other stream of the process runs, and timelines leave only two
 * free. Waits for something else are polled meanwhile.
 */
class Waker {
  readonly epoch: number;
  readonly #context: Context;
  #stream: CUstream | undefined;
  #event: CUevent | undefined;
  #pending: PendingWakeUp | undefined;
  /** Whether the driver refused once. */
  #isRefused = false;

  constructor(context: Context) {
    this.#context = context;
    this.epoch = context.epoch;
  }

  /** @param record returns the event to wait for; undefined if there is none. May record `event` for it */
  arm(
    awaited: Awaited,
    onWake: () => void,
    record: (event: CUevent) => CUevent | undefined,
  ): (() => void) | undefined {
    if (!this.#pending) {
      const pending = { awaited, listeners: new Set<() => void>() };
      if (this.#isRefused || !this.#launch(pending, record)) return undefined;
      this.#pending = pending;
    }
    const { listeners, awaited: current } = this.#pending;
    if (current !== awaited) return undefined;
    listeners.add(onWake);
    return () => listeners.delete(onWake);
  }

  #launch(pending: PendingWakeUp, record: (event: CUevent) => CUevent | undefined): boolean {
    const file = takeWakeFile(() => {
      this.#pending = undefined;
      for (const listener of pending.listeners) listener();
    });
    if (!file) {
      this.#isRefused = true;
      return false;
    }
    // Not `context.run`, which throws: the next poll reports what is wrong.
    let isLaunched = false;
    if (cu.cuCtxPushCurrent_v2(this.#context.handle) === CUDA_SUCCESS) {
      isLaunched = this.#queue(record, file.address);
      cu.cuCtxPopCurrent_v2(OUT3);
    }
    if (!isLaunched) file.giveBack();
    return isLaunched;
  }

  /** Queues the call of `fflush`. The context must be current. */
  #queue(record: (event: CUevent) => CUevent | undefined, file: Address): boolean {
    if (!this.#open()) return false;
    const event = record(this.#event as CUevent);
    if (event === undefined) return false;
    const stream = this.#stream as CUstream;
    if (cu.cuStreamWaitEvent(stream, event, 0) !== CUDA_SUCCESS) return false;
    this.#isRefused = cu.cuLaunchHostFunc(stream, fflushAddress(), file) !== CUDA_SUCCESS;
    return !this.#isRefused;
  }

  /** Makes the stream and the event, which live until the context is reset. The context must be current. */
  #open(): boolean {
    if (this.#event !== undefined) return true;
    if (this.#stream === undefined) {
      this.#isRefused =
        cu.cuStreamCreateWithPriority(OUT3, CU_STREAM_NON_BLOCKING, 0) !== CUDA_SUCCESS;
      if (this.#isRefused) return false;
      this.#stream = readHandle<CUstream>(OUT3, cu.cuStreamDestroy_v2);
    }
    this.#isRefused = cu.cuEventCreate(OUT3, CU_EVENT_DISABLE_TIMING) !== CUDA_SUCCESS;
    if (!this.#isRefused) this.#event = readHandle<CUevent>(OUT3, cu.cuEventDestroy_v2);
    return !this.#isRefused;
  }
}
