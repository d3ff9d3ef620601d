/** Tracks the work of a context: the only place that decides whether memory may be freed. */
import { OUT3, readHandle, readUint32 } from '../ffi/arena.ts';
import {
  CU_EVENT_DISABLE_TIMING,
  CU_STREAM_CAPTURE_STATUS_NONE,
  CU_STREAM_LEGACY,
} from '../ffi/constants.ts';
import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUcontext, CUevent, CUstream } from '../ffi/types.ts';
import { check } from './check.ts';
import { CuffiError, isSticky } from './errors.ts';
import { Fence, type FencePart } from './fence.ts';

/** The work of one context that is known to be running. */
export interface RunningWork {
  /** Streams that later calls may use. */
  readonly streams: readonly CUstream[];
  /** Events behind the work of streams that later calls must not use. */
  readonly events: readonly CUevent[];
  /** Whether this is all work: false if some has no event, or other contexts are working. */
  readonly isComplete: boolean;
}

/** The part of a context that files below contexts need. */
export interface TrackedContext {
  readonly workTracker: WorkTracker;
}

/** A stream whose work a {@link WorkTracker} follows. */
export interface FollowedStream {
  readonly handle: CUstream;
  /** Whether others than cuffi may queue work there. */
  isShared: boolean;
  /** Whether it may have work: if not, it is not asked. */
  mayHaveWork: boolean;
}

/** The streams of one context that may have work, and the contexts that use its memory. */
export class WorkTracker {
  /** Default streams, and those that cuffi created. */
  readonly #streams = new Map<CUstream, FollowedStream>();
  /** Those that may have work: however many streams are open, only these are asked. */
  readonly #maybeBusy = new Set<FollowedStream>();
  /** Events behind work in streams where no event may be recorded later: see {@link track}. */
  readonly #events = new EventPool();
  /** Other contexts whose streams may still use memory of this one. */
  readonly #otherContexts = new Set<WorkTracker>();
  /** Streams whose event could not be recorded yet, with that event. */
  readonly #unrecorded = new Map<CUstream, CUevent>();
  #epoch = 0;
  /** Returns the context, if it is open. */
  readonly #context: () => CUcontext | undefined;

  constructor(context: () => CUcontext | undefined) {
    this.#context = context;
    this.follow(CU_STREAM_LEGACY, { isShared: true });
  }

  /**
   * Follows the work of a stream until {@link forget}. One that others may use is asked for ever; of any other,
   * {@link noteWork} is called before work is queued.
   */
  follow(handle: CUstream, { isShared }: { readonly isShared: boolean }): FollowedStream {
    const known = this.#streams.get(handle);
    if (known) return known;
    const stream = { handle, isShared, mayHaveWork: false };
    this.#streams.set(handle, stream);
    if (isShared) this.noteWork(stream);
    return stream;
  }

  /** Ends {@link follow}, as the stream is destroyed. */
  forget(handle: CUstream): void {
    const stream = this.#streams.get(handle);
    if (stream === undefined) return;
    this.#streams.delete(handle);
    this.#maybeBusy.delete(stream);
  }

  /** Whether the work of a stream is followed. */
  follows(handle: CUstream): boolean {
    return this.#streams.has(handle);
  }

  /** Notes that work may be queued in a stream. */
  noteWork(stream: FollowedStream): void {
    // A reset has forgotten it.
    if (this.#streams.get(stream.handle) !== stream) return;
    stream.mayHaveWork = true;
    this.#maybeBusy.add(stream);
  }

  /** Queries a stream, which is not asked again before it gets work if it has none. */
  #ask(stream: FollowedStream): CUresult {
    const status = cu.cuStreamQuery(stream.handle);
    if (status === CUresult.CUDA_SUCCESS && !stream.isShared) {
      stream.mayHaveWork = false;
      this.#maybeBusy.delete(stream);
    }
    return status;
  }

  /** How many events it has, in use or kept for later work. */
  get eventCount(): number {
    return this.#events.size;
  }

  /**
   * Calls `queue`, which queues work in a stream where no event may be recorded later, and records an
   * event behind that work. The context must be current. For borrowed streams: the owner may destroy one at
   * any time, and a later query would crash. For the legacy default stream: it makes blocking streams wait
   * for each other, and only an event right behind its work adds no such wait. While a graph is captured,
   * the stream runs nothing, and an event would become a part of the graph.
   *
   * @throws what `queue` throws; CudaError, before anything is queued
   */
  track(stream: CUstream, queue: () => void): void {
    if (stream !== CU_STREAM_LEGACY && isCaptured(stream)) {
      queue();
      return;
    }
    const event = this.#events.eventFor(stream);
    try {
      queue();
    } finally {
      this.#unrecorded.set(stream, event);
      this.#recordUnrecorded();
    }
  }

  /** A stream whose event still fails counts as running until the context is synchronized. */
  #recordUnrecorded(): void {
    for (const [stream, event] of this.#unrecorded)
      if (cu.cuEventRecord(event, stream) === CUresult.CUDA_SUCCESS)
        this.#unrecorded.delete(stream);
  }

  /**
   * Records an event behind the work of a stream, which the context must be current for. The caller
   * releases it.
   *
   * @throws CudaError
   */
  recordBehind(stream: CUstream): CUevent {
    return this.#events.recordAndRetain(stream);
  }

  /** Ends the use of an event of {@link recordBehind}. After a reset, does nothing. */
  releaseEvent(event: CUevent): void {
    this.#events.release(event);
  }

  /** Notes that a stream of another context uses memory of this one. */
  addOtherContext(other: WorkTracker): void {
    if (other !== this) this.#otherContexts.add(other);
  }

  /** Notes that all work of the context is done, as the context was synchronized. */
  noteSynchronized(): void {
    this.#unrecorded.clear();
  }

  /** Whether no work that may use memory of this context is known to be running. */
  isIdle(): boolean {
    if (!this.areStreamsIdle()) return false;
    for (const other of this.#otherContexts) {
      if (!other.areStreamsIdle()) return false;
      // Removed as soon as its work is done: its owner may destroy a borrowed context at any time after
      // that, and the driver crashes when a destroyed context is pushed.
      this.#otherContexts.delete(other);
    }
    return true;
  }

  /**
   * Whether no work of this context is known to be running; a lost or closed context has none. A
   * context that cannot be entered, and is not known to be gone, counts as running.
   */
  areStreamsIdle(): boolean {
    const entered = this.#push();
    if (entered !== CUresult.CUDA_SUCCESS) return entered === undefined || hasContextEnded(entered);
    return this.#pollAndLeave() !== CUresult.CUDA_ERROR_NOT_READY;
  }

  /** Queries the work: returns success, not ready, or the first error, also of entering the context. */
  poll(): CUresult {
    const entered = this.#push();
    if (entered === undefined) return CUresult.CUDA_SUCCESS;
    return entered === CUresult.CUDA_SUCCESS ? this.#pollAndLeave() : entered;
  }

  /** As {@link poll}, with the context current, which it is not afterwards. */
  #pollAndLeave(): CUresult {
    let worst: CUresult = CUresult.CUDA_SUCCESS;
    const note = (status: CUresult): void => {
      if (status === CUresult.CUDA_ERROR_NOT_READY || worst === CUresult.CUDA_SUCCESS)
        worst = status;
    };
    if (this.#unrecorded.size > 0) this.#recordUnrecorded();
    for (const stream of this.#maybeBusy) note(this.#ask(stream));
    this.#events.pending(note);
    // In a lost context, all work has ended.
    if (this.#unrecorded.size > 0 && worst === CUresult.CUDA_SUCCESS)
      note(CUresult.CUDA_ERROR_NOT_READY);
    cu.cuCtxPopCurrent_v2(OUT3);
    return worst;
  }

  /**
   * Returns a fence behind the work queued now in one stream, but not in the legacy default stream. The
   * stream may be closed: its handle stays valid as long as it has work. No event is recorded in a borrowed
   * stream, which its owner may have destroyed: the one right behind the work of cuffi is used.
   */
  fenceBehind(stream: CUstream): Fence {
    return new Fence([this.#fence(stream)]);
  }

  /** Whether work of a stream is not done, as of {@link fenceBehind}. */
  hasWork(stream: CUstream): boolean {
    const work = this.fenceBehind(stream);
    const isDone = work.isDone();
    work.dispose();
    return !isDone;
  }

  #isBusy(stream: FollowedStream): boolean {
    return this.#ask(stream) === CUresult.CUDA_ERROR_NOT_READY;
  }

  /** Returns a fence behind the work queued now that may use memory of this context. */
  fence(): Fence {
    return new Fence([this.#fence(), ...[...this.#otherContexts].map((other) => other.#fence())]);
  }

  /** Returns the work running now that may use memory of this context, which must be current. */
  runningWork(): RunningWork {
    if (this.#unrecorded.size > 0) this.#recordUnrecorded();
    const streams: CUstream[] = [];
    for (const stream of this.#maybeBusy)
      if (stream.handle !== CU_STREAM_LEGACY && this.#isBusy(stream)) streams.push(stream.handle);
    const isComplete =
      this.#unrecorded.size === 0 &&
      [...this.#otherContexts].every((other) => other.areStreamsIdle());
    return { streams, events: this.#events.pending(), isComplete };
  }

  /** Forgets all work, as the context was reset. */
  clear(): void {
    this.#streams.clear();
    this.#maybeBusy.clear();
    this.follow(CU_STREAM_LEGACY, { isShared: true });
    this.#events.clear();
    this.#otherContexts.clear();
    this.#unrecorded.clear();
    this.#epoch += 1;
  }

  /** @param only the stream whose work counts. Default: all. */
  #fence(only?: CUstream): FencePart {
    const epoch = this.#epoch;
    const common = {
      isReset: () => this.#epoch !== epoch,
      releaseEvent: (event: CUevent) => this.#events.release(event),
    };
    const fallback = { events: [], isDone: () => this.areStreamsIdle(), ...common };
    const entered = this.#push();
    if (entered === undefined || hasContextEnded(entered)) return { events: [], ...common };
    if (entered !== CUresult.CUDA_SUCCESS) return fallback;
    const events: CUevent[] = [];
    try {
      if (this.#unrecorded.size > 0) return fallback;
      for (const mark of this.#events.pending(undefined, only))
        events.push(this.#events.retain(mark));
      // An event in the legacy default stream would order other streams.
      if (only === undefined) {
        for (const stream of this.#maybeBusy)
          if (stream.handle !== CU_STREAM_LEGACY && this.#isBusy(stream))
            events.push(this.#events.recordAndRetain(stream.handle));
      } else if (only !== CU_STREAM_LEGACY) {
        const stream = this.#streams.get(only);
        if (stream) {
          events.push(this.#events.recordAndRetain(only));
          this.noteWork(stream);
        }
      }
      return { events, ...common };
    } catch {
      for (const event of events) this.#events.release(event);
      return fallback;
    } finally {
      cu.cuCtxPopCurrent_v2(OUT3);
    }
  }

  /** Pushes the context; returns undefined if it is not open. */
  #push(): CUresult | undefined {
    const context = this.#context();
    return context === undefined ? undefined : cu.cuCtxPushCurrent_v2(context);
  }
}

/** Why a context cannot be entered whose work is over: it is gone, or lost. */
const hasContextEnded = (status: CUresult): boolean =>
  status === CUresult.CUDA_ERROR_DEINITIALIZED ||
  status === CUresult.CUDA_ERROR_INVALID_CONTEXT ||
  status === CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED ||
  isSticky(status);

/**
 * Whether a stream has work. Its context must be current for a default stream. After any other error than
 * "not ready", nothing runs there.
 */
export const isStreamBusy = (stream: CUstream): boolean =>
  cu.cuStreamQuery(stream) === CUresult.CUDA_ERROR_NOT_READY;

/**
 * Whether the work of a stream is captured, by any library; for the legacy default stream, whether that
 * of a blocking stream is. Harms no capture. The context must be current for a default stream.
 */
export function isCaptured(stream: CUstream): boolean {
  const status = cu.cuStreamIsCapturing(stream, OUT3);
  if (status === CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  return status === CUresult.CUDA_SUCCESS && readUint32(OUT3) !== CU_STREAM_CAPTURE_STATUS_NONE;
}

/**
 * Call it before what the driver refuses in a captured stream in every mode, as that ends the capture.
 * The context must be current for a default stream.
 *
 * @throws CuffiError if the work of the stream is captured, by any library
 */
export function assertNotCaptured(stream: CUstream, doing: string): void {
  if (isCaptured(stream))
    throw new CuffiError(
      `${doing} is not possible in a stream whose work is captured: the driver cannot record it, and would end the ` +
        'capture. Do it before or after the capture, or in another stream.',
    );
}

// ---- Events behind the work of streams ----

const NO_EVENTS: readonly CUevent[] = [];

/**
 * The events that one context records behind the work of streams. It keeps the latest event of each
 * stream, the events that fences use, and free ones. To make an event, its context must be current.
 */
class EventPool {
  readonly #latest = new Map<CUstream, CUevent>();
  /** How many fences use an event, which is not recorded again meanwhile. */
  readonly #useCounts = new Map<CUevent, number>();
  #free: CUevent[] = [];

  get size(): number {
    return new Set([...this.#free, ...this.#latest.values(), ...this.#useCounts.keys()]).size;
  }

  /** Returns the event to record behind the next work of a stream. @throws CudaError if it cannot be made */
  eventFor(stream: CUstream): CUevent {
    const latest = this.#latest.get(stream);
    const event = latest === undefined || this.#useCounts.has(latest) ? this.#acquire() : latest;
    this.#latest.set(stream, event);
    return event;
  }

  /**
   * Returns the events whose work is not done, and frees the others; `onStatus` receives each status.
   *
   * @param only the stream whose event is asked for. Default: all.
   */
  pending(onStatus: (status: CUresult) => void = () => {}, only?: CUstream): readonly CUevent[] {
    if (this.#latest.size === 0) return NO_EVENTS;
    const pending: CUevent[] = [];
    for (const [stream, event] of this.#latest) {
      if (only !== undefined && stream !== only) continue;
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
