/** What is known to run in a context: the one place that asks whether memory may be freed. */
import { OUT3, readUint32 } from '../ffi/arena.ts';
import { CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_LEGACY } from '../ffi/constants.ts';
import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUcontext, CUevent, CUstream } from '../ffi/types.ts';
import { isSticky } from './errors.ts';
import { EventPool } from './event-pool.ts';
import { Fence, type FencePart } from './fence.ts';

const LEGACY = CU_STREAM_LEGACY as CUstream;

/** The work of one context that is known to run. */
export interface RunningWork {
  /** Streams that may be named in later calls. */
  readonly streams: readonly CUstream[];
  /** Events behind the work of streams that may not. */
  readonly events: readonly CUevent[];
  /** Whether that is all: there may be work that no event is behind, and that of other contexts. */
  readonly isComplete: boolean;
}

/** The streams of one context that may have work. */
export class WorkTracker {
  /** Streams of cuffi's own, and default ones. */
  readonly streams = new Set<CUstream>([LEGACY]);
  /** Behind the work in streams where no event may be recorded later: see {@link track}. */
  readonly #events = new EventPool();
  /** Other contexts whose streams may still work on memory of this one. */
  readonly #otherContexts = new Set<WorkTracker>();
  /** Streams with work that could not be marked yet, and the events to mark it with. */
  readonly #unrecorded = new Map<CUstream, CUevent>();
  #epoch = 0;
  /** The context, if it is open. */
  readonly #context: () => CUcontext | undefined;

  constructor(context: () => CUcontext | undefined) {
    this.#context = context;
  }

  /**
   * With the context current: calls `queue`, which queues work in a stream where no event may be
   * recorded later, and marks that. A borrowed stream may be destroyed behind our back, and asking
   * it then would crash. The legacy default stream makes the blocking streams wait for each other:
   * right behind work there an event adds nothing to that, later it would. A stream that someone
   * captures into a graph runs nothing, and an event would become a part of the graph.
   *
   * @throws what `queue` throws; CudaError, before anything is queued
   */
  track(stream: CUstream, queue: () => void): void {
    if (stream !== LEGACY && isCaptured(stream)) {
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

  /** Streams that are not marked even then count as running until the context was waited for. */
  #recordUnrecorded(): void {
    for (const [stream, event] of this.#unrecorded)
      if (cu.cuEventRecord(event, stream) === CUresult.CUDA_SUCCESS)
        this.#unrecorded.delete(stream);
  }

  /** Remembers that work on memory of this context was queued in a stream of another. */
  addOtherContext(other: WorkTracker): void {
    if (other !== this) this.#otherContexts.add(other);
  }

  /** Remembers that all work of the context was waited for. */
  noteSynchronized(): void {
    this.#unrecorded.clear();
  }

  /** Whether no work is known to run that may touch memory of this context. */
  isIdle(): boolean {
    if (!this.areStreamsIdle()) return false;
    for (const visitor of this.#otherContexts) {
      if (!visitor.areStreamsIdle()) return false;
      // Forgotten as soon as it is done: a borrowed context may be destroyed any time after, and
      // the driver crashes when a destroyed one is pushed.
      this.#otherContexts.delete(visitor);
    }
    return true;
  }

  /**
   * Whether no work is known to run; what is broken or gone has none. Work in a context that cannot
   * be entered, and is not known to be gone, counts as running.
   */
  areStreamsIdle(): boolean {
    const entered = this.#push();
    if (entered !== CUresult.CUDA_SUCCESS) return entered === undefined || isOver(entered);
    return this.#pollAndLeave() !== CUresult.CUDA_ERROR_NOT_READY;
  }

  /** Success, not ready, or the first error of the work, or of entering the context. */
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
    for (const stream of this.streams) note(cu.cuStreamQuery(stream));
    this.#events.pending(note);
    // Where the context is lost, all work in it is over.
    if (this.#unrecorded.size > 0 && worst === CUresult.CUDA_SUCCESS)
      note(CUresult.CUDA_ERROR_NOT_READY);
    cu.cuCtxPopCurrent_v2(OUT3);
    return worst;
  }

  /** The work that is known to be queued now and may touch memory of this context. */
  fence(): Fence {
    return new Fence([
      this.#fence(),
      ...[...this.#otherContexts].map((visitor) => visitor.#fence()),
    ]);
  }

  /** With the context current: what runs now and may touch memory of this context. */
  runningWork(): RunningWork {
    if (this.#unrecorded.size > 0) this.#recordUnrecorded();
    const streams: CUstream[] = [];
    for (const stream of this.streams)
      if (stream !== LEGACY && isBusy(stream)) streams.push(stream);
    const isComplete =
      this.#unrecorded.size === 0 &&
      [...this.#otherContexts].every((visitor) => visitor.areStreamsIdle());
    return { streams, events: this.#events.pending(), isComplete };
  }

  /** Forgets everything, as the context was reset. */
  clear(): void {
    this.streams.clear();
    this.streams.add(LEGACY);
    this.#events.clear();
    this.#otherContexts.clear();
    this.#unrecorded.clear();
    this.#epoch += 1;
  }

  #fence(): FencePart {
    const epoch = this.#epoch;
    const common = {
      isReset: () => this.#epoch !== epoch,
      releaseEvent: (event: CUevent) => this.#events.release(event),
    };
    const fallback = { events: [], isDone: () => this.areStreamsIdle(), ...common };
    const entered = this.#push();
    if (entered === undefined || isOver(entered)) return { events: [], ...common };
    if (entered !== CUresult.CUDA_SUCCESS) return fallback;
    const events: CUevent[] = [];
    try {
      if (this.#unrecorded.size > 0) return fallback;
      for (const mark of this.#events.pending()) events.push(this.#events.retain(mark));
      for (const stream of this.streams) {
        // An event there would order streams that are not.
        if (stream !== LEGACY && isBusy(stream)) events.push(this.#events.recordAndRetain(stream));
      }
      return { events, ...common };
    } catch {
      for (const event of events) this.#events.release(event);
      return fallback;
    } finally {
      cu.cuCtxPopCurrent_v2(OUT3);
    }
  }

  /** Makes the context current; undefined where it is not open. */
  #push(): CUresult | undefined {
    const context = this.#context();
    return context === undefined ? undefined : cu.cuCtxPushCurrent_v2(context);
  }
}

/** Why a context cannot be entered whose work is over: it is gone, or lost. */
const isOver = (status: CUresult): boolean =>
  status === CUresult.CUDA_ERROR_DEINITIALIZED ||
  status === CUresult.CUDA_ERROR_INVALID_CONTEXT ||
  status === CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED ||
  isSticky(status);

const isBusy = (stream: CUstream): boolean =>
  cu.cuStreamQuery(stream) === CUresult.CUDA_ERROR_NOT_READY;

const isCaptured = (stream: CUstream): boolean =>
  cu.cuStreamIsCapturing(stream, OUT3) === CUresult.CUDA_SUCCESS &&
  readUint32(OUT3) !== CU_STREAM_CAPTURE_STATUS_NONE;
