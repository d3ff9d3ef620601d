import { CU_STREAM_LEGACY, CU_STREAM_PER_THREAD } from '../../../ffi/constants.ts';
import type { CUstream } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import type { Stream } from '../../stream.ts';
import {
  addWaitingStream,
  knownWaitingStreams,
  type WaitingStream,
  waitingStreams,
} from '../../waits/waiting-streams.ts';
import { MAX_WAITS_PER_CONTEXT } from '../../waits/work-counters.ts';
import { countOtherWaitingStreams, hideWait, showWait } from '../../waits/worker-tables.ts';
import type { HostPage } from './host-page.ts';
import { latest, type TimelinePoint } from './point.ts';
import { waitForCounter } from './stream-memory-operations.ts';

/** A page of counters that streams wait for. */
export interface AwaitedPage {
  /** The memory with the counters. */
  readonly hostPage: HostPage;
  isReached(point: TimelinePoint): boolean;
}

/** The waits that one stream has queued, for the points of all other processes. */
export class StreamWaits implements WaitingStream {
  static readonly #byStream = new WeakMap<Stream, StreamWaits>();
  static readonly #byDefaultStream = new WeakMap<Context, Map<CUstream, StreamWaits>>();

  readonly context: Context;
  readonly #handle: CUstream;
  readonly #number = nextNumber();
  #epoch: number;
  /** For each page, the latest awaited count of each counter. */
  readonly #awaited = new Map<AwaitedPage, Map<number, AwaitedCount>>();

  private constructor(context: Context, handle: CUstream) {
    this.context = context;
    this.#handle = handle;
    this.#epoch = context.epoch;
  }

  /** Returns the waits of a stream, by default of the legacy default stream. @throws ClosedError */
  static of(context: Context, stream: Stream | undefined): StreamWaits {
    const handle = stream?.handle ?? LEGACY;
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

  /** Returns the latest point of each counter for which the stream does not wait yet. */
  notAwaited(page: AwaitedPage, points: readonly TimelinePoint[]): TimelinePoint[] {
    const awaited = this.#awaited.get(page);
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
  add(page: AwaitedPage, { index, count }: TimelinePoint): void {
    let awaited = this.#awaited.get(page);
    if (!awaited) {
      this.#dropReached();
      awaited = new Map();
      this.#awaited.set(page, awaited);
    }
    hide(page, awaited.get(index));
    const shown = showWait(this.context, this.#number, page.hostPage.wordAt(index), count);
    page.hostPage.shownWaits.add(shown);
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

  /** Drops reached counters, so that the page of an ended connection is not kept alive. */
  #dropReached(): void {
    for (const [page, awaited] of this.#awaited) {
      for (const [index, known] of awaited) {
        if (!page.isReached({ index, count: known.count })) continue;
        hide(page, known);
        awaited.delete(index);
      }
      if (awaited.size === 0) this.#awaited.delete(page);
    }
  }

  /** Forgets all waits after a reset of the context. */
  #dropAfterReset(): void {
    if (this.context.epoch === this.#epoch) return;
    this.#epoch = this.context.epoch;
    for (const [page, awaited] of this.#awaited)
      for (const known of awaited.values()) hide(page, known);
    this.#awaited.clear();
  }
}

/**
 * Makes later work of a stream wait for a point. By default it is the legacy default stream of the
 * context.
 *
 * @returns 'known' if the stream waits for that already, 'full' if the limits of waits are reached
 * @throws CudaError
 */
export function enqueueWait(
  page: AwaitedPage,
  point: TimelinePoint,
  context: Context,
  stream: Stream | undefined,
): 'queued' | 'known' | 'full' {
  const waits = StreamWaits.of(context, stream);
  if (waits.notAwaited(page, [point]).length === 0) return 'known';
  const address = page.hostPage.addressIn(context, point.index);
  if (!waits.hasRoom(1)) return 'full';
  const wait = (queue: CUstream): void => waitForCounter(context, queue, address, point.count);
  if (stream) stream.enqueueUncounted(wait);
  else context.enqueueUncounted(wait);
  waits.add(page, point);
  waits.mark();
  return 'queued';
}

const LEGACY = CU_STREAM_LEGACY as CUstream;

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

/** A page that is unmapped has hidden its waits itself. */
function hide({ hostPage }: AwaitedPage, known: AwaitedCount | undefined): void {
  if (known && hostPage.shownWaits.delete(known.shown)) hideWait(known.shown);
}

/**
 * Returns how many streams of a context may wait at a time: two fewer than the device has queues. If
 * all queues held waits, nothing else of the process would run, not even what another process waits
 * for. One queue is left for the user's work, and one for cuffi's own.
 */
function maxWaitingStreams(): number {
  const given = Number(process.env['CUDA_DEVICE_MAX_CONNECTIONS']);
  const queues = Number.isInteger(given) && given >= 1 && given <= 32 ? given : DEFAULT_QUEUES;
  return Math.max(0, queues - 2);
}

/** The driver's default. */
const DEFAULT_QUEUES = 8;
