import { CU_STREAM_LEGACY } from '../../../ffi/constants.ts';
import type { CUstream } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import { CuffiError } from '../../errors.ts';
import { isCapturing } from '../../graph-capture.ts';
import { InternalEvent } from '../../internal-event.ts';
import type { Stream } from '../../stream.ts';
import {
  addWaitingStream,
  countOtherWaitingStreams,
  hideWait,
  knownWaitingStreams,
  showWait,
  type WaitingStream,
  type WorkCounter,
  waitingStreams,
} from '../../waiting-streams.ts';
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
export class StreamWaits implements WaitingStream, WorkCounter {
  static readonly #byStream = new WeakMap<Stream, StreamWaits>();
  static readonly #byDefaultStream = new WeakMap<Context, StreamWaits>();

  readonly context: Context;
  readonly #handle: CUstream;
  readonly #number = nextNumber();
  #epoch: number;
  /** For each page, the latest awaited count of each counter. */
  readonly #awaited = new Map<AwaitedPage, Map<number, AwaitedCount>>();
  /** How many waits may not have run yet, and how many of those follow the event. */
  #queued = 0;
  #afterEvent = 0;
  /** The same for other work of the stream, which is counted while one of the waits may be pending. */
  #work = 0;
  #workAfterEvent = 0;
  #event: InternalEvent | undefined;

  private constructor(context: Context, handle: CUstream) {
    this.context = context;
    this.#handle = handle;
    this.#epoch = context.epoch;
  }

  /** Returns the waits of a stream, by default of the legacy default stream. @throws ClosedError */
  static of(context: Context, stream: Stream | undefined): StreamWaits {
    const handle = stream?.handle ?? LEGACY;
    const isDefault = stream === undefined || handle === LEGACY;
    const within = stream?.context ?? context;
    const waits =
      (isDefault ? StreamWaits.#byDefaultStream.get(within) : StreamWaits.#byStream.get(stream)) ??
      new StreamWaits(within, handle);
    if (isDefault) StreamWaits.#byDefaultStream.set(within, waits);
    else StreamWaits.#byStream.set(stream, waits);
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
    if (!this.#fitsStream(count)) this.#pollEvent();
    if (!this.#fitsStream(count)) {
      this.recordEvent(1);
      return false;
    }
    // Asking the driver takes longer than counting.
    return (
      this.#fitsContextLimit(count, knownWaitingStreams(this.context)) ||
      this.#fitsContextLimit(count, waitingStreams(this.context))
    );
  }

  #fitsStream(count: number): boolean {
    return (
      this.#queued + count <= MAX_WAITS_PER_STREAM &&
      this.#queued + this.#work + count <= MAX_WORK_PER_STREAM
    );
  }

  #fitsContextLimit(count: number, streams: ReadonlySet<WaitingStream>): boolean {
    const waiting = streams as ReadonlySet<StreamWaits>;
    const others = countOtherWaitingStreams(this.context);
    if (!waiting.has(this) && waiting.size + others >= maxWaitingStreams()) return false;
    let queued = count;
    for (const waits of waiting) queued += waits.#queued;
    return queued <= MAX_WAITS_PER_CONTEXT;
  }

  /** Records that a wait was queued. */
  add(page: AwaitedPage, { index, count }: TimelinePoint): void {
    this.#queued += 1;
    this.#afterEvent += 1;
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
    this.context.workCounters.set(this.#handle, this);
  }

  tryCount(): boolean {
    // Work that is captured is not queued.
    if (isCapturing()) return true;
    const isFull = this.#queued + this.#work >= MAX_WORK_PER_STREAM;
    const isDue = this.#work > 0 && this.#work % WORK_PER_EVENT === 0;
    if ((isFull || isDue) && !this.isWaiting) return true;
    if (isFull || isDue) this.recordEvent(0);
    if (this.#queued + this.#work >= MAX_WORK_PER_STREAM) return false;
    this.#work += 1;
    this.#workAfterEvent += 1;
    return true;
  }

  count(): void {
    if (!this.tryCount()) throw tooMuchWork();
  }

  /**
   * Records an event behind the queued waits if there are at least `minimum`, and no event is
   * pending. A reached counter does not prove that the wait has run, because other work may hold the
   * stream up.
   *
   * @throws CudaError
   */
  recordEvent(minimum: number): void {
    if (this.#event || this.#afterEvent < minimum) return;
    const { context } = this;
    const event = new InternalEvent(context);
    try {
      // As 0 means the legacy default stream of the current context.
      context.run(() => event.recordIn(this.#handle === LEGACY ? (0 as CUstream) : this.#handle));
    } catch (error) {
      event[Symbol.dispose]();
      throw error;
    }
    this.#event = event;
    this.#afterEvent = 0;
    this.#workAfterEvent = 0;
  }

  #pollEvent(): void {
    if (!this.#event?.isDone) return;
    this.#event[Symbol.dispose]();
    this.#event = undefined;
    this.#queued = this.#afterEvent;
    this.#work = this.#workAfterEvent;
  }

  /** Whether a wait is still not satisfied. */
  get isWaiting(): boolean {
    this.#dropAfterReset();
    this.#pollEvent();
    this.#dropReached();
    if (this.#awaited.size > 0) return true;
    this.#stopCounting();
    return false;
  }

  #stopCounting(): void {
    this.context.workCounters.delete(this.#handle);
    this.#work = 0;
    this.#workAfterEvent = 0;
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

  /** Forgets all waits, and the event, after a reset of the context. */
  #dropAfterReset(): void {
    if (this.context.epoch === this.#epoch) return;
    this.#epoch = this.context.epoch;
    for (const [page, awaited] of this.#awaited)
      for (const known of awaited.values()) hide(page, known);
    this.#awaited.clear();
    this.#queued = 0;
    this.#afterEvent = 0;
    this.#work = 0;
    this.#workAfterEvent = 0;
    this.#event?.[Symbol.dispose]();
    this.#event = undefined;
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
  waits.recordEvent(WAITS_PER_EVENT);
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

// ---- The limits ----

/**
 * The most waits that one stream may have queued, for all other processes together. Behind an
 * unreached wait a stream accepts 1,020 operations. The next one blocks its caller inside the
 * driver, so that it cannot see that the other process has ended. Most of the 1,020 are left for
 * the work between the waits.
 */
const MAX_WAITS_PER_STREAM = 320;
/**
 * The most pieces of work that may be queued behind a wait, waits included. Events, and what pools allocate
 * and free, do not count (H100). The rest is for what cuffi does not see: work of other libraries.
 */
const MAX_WORK_PER_STREAM = 960;
/** After so much work an event is recorded, to find out how much of it has run. */
const WORK_PER_EVENT = 128;
/** The most waits for all streams of a context, as some of them may share a hardware queue. */
const MAX_WAITS_PER_CONTEXT = 512;
/** The number of queued waits after which an event is recorded, to find out how many have run. */
export const WAITS_PER_EVENT: number = MAX_WAITS_PER_STREAM / 2;

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

const tooMuchWork = (): CuffiError =>
  new CuffiError(
    `${MAX_WORK_PER_STREAM} operations are queued in this stream behind a wait for another process: the driver would ` +
      'block this process at the next ones. Await stream.synchronize() or timeline.reached() before queueing more',
  );
