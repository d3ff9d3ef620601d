/**
 * Wakes waits when the GPU is done, without polling and without a thread: the driver calls `fflush` in a
 * stream of cuffi's own, behind an event. A host function in the user's stream would delay its work.
 */

import { OUT3, readHandle, readUint32 } from '../../ffi/arena.ts';
import {
  CU_EVENT_DISABLE_TIMING,
  CU_STREAM_CAPTURE_STATUS_NONE,
  CU_STREAM_NON_BLOCKING,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { fflushAddress, takeWakeFile } from '../../ffi/linux/wake-file.ts';
import { CUresult } from '../../ffi/results.ts';
import type { Address, CUcontext, CUevent, CUstream } from '../../ffi/types.ts';
import { isCapturing } from '../graph-capture.ts';
import { waitingStreams } from './waiting-streams.ts';
import { countOtherWaitingStreams } from './worker-tables.ts';

const { CUDA_SUCCESS } = CUresult;

/** A context, as far as it matters here. */
interface Context {
  readonly handle: CUcontext;
  readonly borrowed: boolean;
  readonly isLost: boolean;
  readonly epoch: number;
}

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
 * of one more, and each may stop streams that have nothing to do with any of them (H100).
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

/**
 * The wake-ups of one context, until its reset. At most one function is pending for what is waited for,
 * and all its waits share that. Each pending function has a stream of its own. These streams held no
 * other stream up, even 16 beside 16 that worked (H100); more waits than that are polled.
 */
class Waker {
  readonly epoch: number;
  readonly #context: Context;
  readonly #wakeStreams: WakeStream[] = [];
  /** Whether the driver refused once. */
  #isRefused = false;

  constructor(context: Context) {
    this.#context = context;
    this.epoch = context.epoch;
  }

  /** How many streams it has made, each with an event. */
  get size(): number {
    return this.#wakeStreams.length;
  }

  arm(awaited: Awaited, onWake: () => void, record: Record): (() => void) | undefined {
    let wakeStream = this.#wakeStreams.find((pending) => pending.awaited === awaited);
    if (!wakeStream) {
      wakeStream = this.#launch(awaited, record);
      if (!wakeStream) return undefined;
    }
    const { listeners } = wakeStream;
    listeners.add(onWake);
    return () => listeners.delete(onWake);
  }

  #launch(awaited: Awaited, record: Record): WakeStream | undefined {
    if (this.#isRefused) return undefined;
    let wakeStream = this.#wakeStreams.find((idle) => idle.awaited === undefined);
    if (!wakeStream && this.#wakeStreams.length === MAX_WAKE_STREAMS) return undefined;
    const file = takeWakeFile(() => wakeStream?.wake());
    if (!file) return undefined;
    // Not `context.run`, which throws: the next poll reports what is wrong.
    let isLaunched = false;
    if (cu.cuCtxPushCurrent_v2(this.#context.handle) === CUDA_SUCCESS) {
      wakeStream ??= this.#open();
      isLaunched = wakeStream !== undefined && this.#queue(wakeStream, record, file.address);
      cu.cuCtxPopCurrent_v2(OUT3);
    }
    if (!wakeStream || !isLaunched) {
      file.release();
      return undefined;
    }
    wakeStream.awaited = awaited;
    return wakeStream;
  }

  /** Queues the call of `fflush`. The context must be current. */
  #queue({ stream, event }: WakeStream, record: Record, file: Address): boolean {
    const behind = record(event);
    if (behind === undefined) return false;
    if (cu.cuStreamWaitEvent(stream, behind, 0) !== CUDA_SUCCESS) return false;
    this.#isRefused = cu.cuLaunchHostFunc(stream, fflushAddress(), file) !== CUDA_SUCCESS;
    return !this.#isRefused;
  }

  /** Makes a stream and an event, which live until the context is reset. The context must be current. */
  #open(): WakeStream | undefined {
    if (cu.cuEventCreate(OUT3, CU_EVENT_DISABLE_TIMING) !== CUDA_SUCCESS) return undefined;
    const event = readHandle<CUevent>(OUT3, cu.cuEventDestroy_v2);
    if (cu.cuStreamCreateWithPriority(OUT3, CU_STREAM_NON_BLOCKING, 0) !== CUDA_SUCCESS) {
      cu.cuEventDestroy_v2(event);
      return undefined;
    }
    const wakeStream = new WakeStream(readHandle<CUstream>(OUT3, cu.cuStreamDestroy_v2), event);
    this.#wakeStreams.push(wakeStream);
    return wakeStream;
  }
}

/** The most functions that are pending in a context. */
const MAX_WAKE_STREAMS = 16;

/** Returns the event to wait for, or undefined if nothing has to be awaited. May record `event` for it. */
type Record = (event: CUevent) => CUevent | undefined;

/** A stream for one pending function, and whom it wakes. */
class WakeStream {
  readonly stream: CUstream;
  readonly event: CUevent;
  readonly listeners = new Set<() => void>();
  /** What the pending function is behind; undefined if none is pending. */
  awaited: Awaited | undefined;

  constructor(stream: CUstream, event: CUevent) {
    this.stream = stream;
    this.event = event;
  }

  wake(): void {
    this.awaited = undefined;
    const listeners = [...this.listeners];
    this.listeners.clear();
    for (const listener of listeners) listener();
  }
}
