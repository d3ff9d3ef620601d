import {
  CU_STREAM_LEGACY,
  CU_STREAM_PER_THREAD,
  CU_STREAM_WAIT_VALUE_GEQ,
} from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import type { CUdeviceptr, CUstream } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import type { Stream } from '../../stream.ts';
import {
  addWaitingStream,
  knownWaitingStreams,
  type WaitingStream,
  waitingStreams,
} from '../../waits/waiting-streams.ts';
import { MAX_WAITS_PER_CONTEXT, maxWaitingStreams } from '../../waits/work-counters.ts';
import { countOtherWaitingStreams, hideWait, showWait } from '../../waits/worker-tables.ts';
import { latest, type SharedWords, type TimelinePoint } from './words.ts';

/** The waits that one stream has queued, for the points of all other processes. */
export class StreamWaits implements WaitingStream {
  static readonly #byStream = new WeakMap<Stream, StreamWaits>();
  static readonly #byDefaultStream = new WeakMap<Context, Map<CUstream, StreamWaits>>();

  readonly context: Context;
  readonly #handle: CUstream;
  readonly #number = nextNumber();
  #epoch: number;
  /** For all words, the latest awaited count of each word. */
  readonly #awaited = new Map<SharedWords, Map<number, AwaitedCount>>();

  private constructor(context: Context, handle: CUstream) {
    this.context = context;
    this.#handle = handle;
    this.#epoch = context.epoch;
  }

  /** Returns the waits of a stream, by default of the legacy default stream. @throws ClosedError */
  static of(context: Context, stream: Stream | undefined): StreamWaits {
    const handle = stream?.queryHandle ?? CU_STREAM_LEGACY;
    const within = stream?.context ?? context;
    let waits: StreamWaits | undefined;
    // Each context has its own default streams, and each use of one may have another object.
    if (stream === undefined || handle <= CU_STREAM_PER_THREAD) {
      const byHandle = StreamWaits.#byDefaultStream.get(within) ?? new Map<CUstream, StreamWaits>();
      StreamWaits.#byDefaultStream.set(within, byHandle);
      waits = byHandle.get(handle) ?? new StreamWaits(within, handle);
      byHandle.set(handle, waits);
    } else {
      waits = StreamWaits.#byStream.get(stream) ?? new StreamWaits(within, handle);
      StreamWaits.#byStream.set(stream, waits);
    }
    waits.#dropAfterReset();
    return waits;
  }

  /** Returns the latest point of each word for which the stream does not wait yet. */
  notAwaited(words: SharedWords, points: readonly TimelinePoint[]): TimelinePoint[] {
    const awaited = this.#awaited.get(words);
    return latest(points).filter(({ index, count }) => {
      const known = awaited?.get(index);
      return known === undefined || known.count < count;
    });
  }

  /** Whether `count` more waits may be queued. @throws CudaError if the context is lost */
  hasRoom(count: number): boolean {
    if (!this.context.workCounters.hasRoomForWaits(this.#handle, count)) return false;
    // Asking the driver takes longer than counting.
    if (this.#fitsContextLimit(count, knownWaitingStreams(this.context))) return true;
    this.context.workCounters.refresh();
    return this.#fitsContextLimit(count, waitingStreams(this.context));
  }

  #fitsContextLimit(count: number, streams: ReadonlySet<WaitingStream>): boolean {
    const waiting = streams as ReadonlySet<StreamWaits>;
    const others = countOtherWaitingStreams(this.context);
    if (!waiting.has(this) && waiting.size + others >= maxWaitingStreams()) return false;
    const { workCounters } = this.context;
    let queued = count;
    for (const waits of waiting) queued += workCounters.waitCount(waits.#handle);
    return queued <= MAX_WAITS_PER_CONTEXT;
  }

  /** Records that a wait was queued. */
  add(words: SharedWords, { index, count }: TimelinePoint): void {
    let awaited = this.#awaited.get(words);
    if (!awaited) {
      this.#dropReached();
      awaited = new Map();
      this.#awaited.set(words, awaited);
    }
    hide(words, awaited.get(index));
    const shown = showWait(this.context, this.#number, words.wordAt(index), count);
    words.shownWaits.add(shown);
    awaited.set(index, { count, shown });
    addWaitingStream(this.context, this);
    this.context.workCounters.addWait(this.#handle, this);
  }

  /** Called after waits were queued: finds out how many have run, if there are many. @throws CudaError */
  mark(): void {
    this.context.workCounters.markWaits(this.#handle);
  }

  /** Whether a wait is still not satisfied. */
  get isWaiting(): boolean {
    this.#dropAfterReset();
    this.#dropReached();
    return this.#awaited.size > 0;
  }

  /** Drops what is reached, so that the words of an ended connection are not kept alive. */
  #dropReached(): void {
    for (const [words, awaited] of this.#awaited) {
      for (const [index, known] of awaited) {
        if (!words.isReached({ index, count: known.count })) continue;
        hide(words, known);
        awaited.delete(index);
      }
      if (awaited.size === 0) this.#awaited.delete(words);
    }
  }

  /** Forgets all waits after a reset of the context. */
  #dropAfterReset(): void {
    if (this.context.epoch === this.#epoch) return;
    this.#epoch = this.context.epoch;
    for (const [words, awaited] of this.#awaited)
      for (const known of awaited.values()) hide(words, known);
    this.#awaited.clear();
  }
}

/**
 * Makes later work of a stream wait for points. By default it is the legacy default stream of the
 * context. Queues all waits or none, unless the driver refuses one.
 *
 * @returns 'known' if the stream waits for that already, 'full' if the limits of waits are reached
 * @throws CudaError
 */
export function enqueueWaits(
  words: SharedWords,
  points: readonly TimelinePoint[],
  context: Context,
  stream: Stream | undefined,
): 'queued' | 'known' | 'full' {
  const waits = StreamWaits.of(context, stream);
  const needed = waits.notAwaited(words, points);
  if (needed.length === 0) return 'known';
  if (!waits.hasRoom(needed.length)) return 'full';
  for (const point of needed) {
    const address = words.addressIn(waits.context, point.index);
    // Recorded before queueing: a wait that is not recorded could block for ever.
    words.noteAwaited(point);
    const wait = (queue: CUstream): void => waitForWord(queue, address, point.count);
    if (stream) stream.enqueueUncounted(wait);
    else context.enqueueUncounted(wait);
    waits.add(words, point);
  }
  waits.mark();
  return 'queued';
}

/** Queues a wait until a word is not below `count`. @throws CudaError */
function waitForWord(stream: CUstream, address: CUdeviceptr, count: number): void {
  check(
    cu.cuStreamWaitValue64_v2(stream, address, count, CU_STREAM_WAIT_VALUE_GEQ),
    'cuStreamWaitValue64_v2',
    () => 'making a stream wait for a stream of another process',
  );
}

let streamCount = 0;
function nextNumber(): number {
  streamCount += 1;
  return streamCount;
}

/** The latest count that a stream waits for, and where other threads see that. */
interface AwaitedCount {
  readonly count: number;
  readonly shown: number;
}

/** Words that are unmapped have hidden their waits themselves. */
function hide({ shownWaits }: SharedWords, known: AwaitedCount | undefined): void {
  if (known && shownWaits.delete(known.shown)) hideWait(known.shown);
}
