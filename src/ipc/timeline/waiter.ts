import { CU_STREAM_LEGACY } from '../../../ffi/constants.ts';
import type { Context } from '../../context.ts';
import { CudaError } from '../../errors.ts';
import { InternalEvent } from '../../internal-event.ts';
import type { Stream } from '../../stream.ts';
import type { TimelinePage } from './page.ts';
import { hasReached, latest, type TimelinePoint } from './point.ts';
import { comparedBits, waitForCounter } from './stream-memory-operations.ts';

/** Makes streams of this process wait for the counters of another process. */
export class Waiter {
  readonly #page: TimelinePage;
  /** The latest awaited point of each counter. */
  readonly #awaited = new Map<number, TimelinePoint>();
  /** The fewest bits of a counter that any waiting stream compares. */
  #bits: 32 | 64 = 64;
  #isDeviceRefused = false;

  constructor(page: TimelinePage) {
    this.#page = page;
  }

  isReached(points: readonly TimelinePoint[]): boolean {
    return points.every((point) => this.#page.isReached(point));
  }

  /**
   * Makes later work of a stream wait for points; the default is the context's legacy default
   * stream. The other process must be alive. Returns false if the device cannot wait or too many
   * waits are queued: then the host must wait.
   */
  enqueueWaits(points: readonly TimelinePoint[], context: Context, stream?: Stream): boolean {
    if (this.#isDeviceRefused || !this.#page.isMemoryFixed) return false;
    const unreached = points.filter((point) => !this.#page.isReached(point));
    if (unreached.length === 0) return true;
    try {
      const waits = StreamWaits.of(context, stream);
      if (comparedBits(waits.context) === 32) {
        // If the counts were further apart, no single counter value could end all waits.
        if (unreached.some(({ count }) => count >= 2 ** 31)) return false;
        this.#bits = 32;
      }
      const needed = waits.notAwaited(this.#page, unreached);
      if (needed.length === 0) return true;
      if (!waits.hasRoom(needed.length, stream)) return false;
      for (const point of needed) {
        this.#enqueueWait(point, context, stream);
        waits.add(this.#page, point);
      }
      waits.recordEvent(WAITS_PER_EVENT, stream);
      return true;
    } catch (error) {
      if (!(error instanceof CudaError) || error.sticky) throw error;
      this.#isDeviceRefused = true;
      return false;
    }
  }

  /**
   * Ends all waits after the other process is gone, so that no stream stays blocked. Returns how
   * many points were not reached.
   */
  abandon(): number {
    const awaited = [...this.#awaited.values()];
    const unreached = awaited.filter((point) => !this.#page.isReached(point));
    for (const point of awaited) this.#page.releaseWaits(point, this.#bits);
    this.#awaited.clear();
    return unreached.length;
  }

  /** Forgets this waiter once the page is unmapped. */
  unregister(): void {
    waiters.delete(this);
  }

  #enqueueWait(point: TimelinePoint, context: Context, stream: Stream | undefined): void {
    const { index, count } = point;
    const waitContext = stream?.context ?? context;
    const address = this.#page.addressIn(waitContext, index);
    waiters.add(this);
    // Recorded before queueing: a wait that is not recorded could block for ever.
    const known = this.#awaited.get(index);
    if (known === undefined || known.count < count) this.#awaited.set(index, point);
    if (stream) stream.enqueue((queue) => waitForCounter(waitContext, queue, address, count));
    else context.enqueue((queue) => waitForCounter(waitContext, queue, address, count));
  }
}

// ---- The waits of one stream, and their limits ----

/**
 * The most waits that one stream may have queued, for all other processes together. Behind an
 * unreached wait a stream accepts 1,020 operations. The next one blocks its caller inside the
 * driver, so that it cannot see that the other process has ended. Most of the 1,020 are left for
 * the work between the waits.
 */
const MAX_WAITS_PER_STREAM = 320;
/** The most waits for all streams of a context, as some of them may share a hardware queue. */
const MAX_WAITS_PER_CONTEXT = 512;
/** The number of queued waits after which an event is recorded, to find out how many have run. */
const WAITS_PER_EVENT = MAX_WAITS_PER_STREAM / 2;

/**
 * Returns how many streams of a context may wait at a time: one fewer than the device has queues.
 * If all queues held waits, nothing else of the process would run, not even what another process
 * waits for.
 */
const maxWaitingStreams = (): number => {
  const queues = Number(process.env['CUDA_DEVICE_MAX_CONNECTIONS']);
  return Number.isInteger(queues) && queues >= 1 && queues <= 32 ? Math.max(1, queues - 1) : 7;
};

/** The waits that one stream has queued, for the points of all other processes. */
class StreamWaits {
  static readonly #byStream = new WeakMap<Stream, StreamWaits>();
  static readonly #byDefaultStream = new WeakMap<Context, StreamWaits>();
  /** The streams of each context that may have a pending wait. */
  static readonly #waitingByContext = new WeakMap<Context, Set<StreamWaits>>();

  readonly context: Context;
  #epoch: number;
  /** For each page, the latest awaited count of each counter. */
  readonly #awaited = new Map<TimelinePage, Map<number, number>>();
  /** How many waits may not have run yet, and how many of those follow the event. */
  #queued = 0;
  #afterEvent = 0;
  #event: InternalEvent | undefined;

  private constructor(context: Context) {
    this.context = context;
    this.#epoch = context.epoch;
  }

  /** Returns the waits of a stream, by default of the legacy default stream. @throws ClosedError */
  static of(context: Context, stream: Stream | undefined): StreamWaits {
    const isDefault = stream === undefined || stream.handle === CU_STREAM_LEGACY;
    const within = stream?.context ?? context;
    const waits =
      (isDefault ? StreamWaits.#byDefaultStream.get(within) : StreamWaits.#byStream.get(stream)) ??
      new StreamWaits(within);
    if (isDefault) StreamWaits.#byDefaultStream.set(within, waits);
    else StreamWaits.#byStream.set(stream, waits);
    waits.#dropAfterReset();
    return waits;
  }

  /** Returns the latest point of each counter for which the stream does not wait yet. */
  notAwaited(page: TimelinePage, points: readonly TimelinePoint[]): TimelinePoint[] {
    const awaited = this.#awaited.get(page);
    return latest(points).filter(({ index, count }) => {
      const known = awaited?.get(index);
      return known === undefined || !hasReached(known, count);
    });
  }

  /** Whether `count` more waits may be queued. @throws CudaError if the context is lost */
  hasRoom(count: number, stream: Stream | undefined): boolean {
    if (this.#queued + count > MAX_WAITS_PER_STREAM) this.#pollEvent();
    if (this.#queued + count > MAX_WAITS_PER_STREAM) {
      this.recordEvent(1, stream);
      return false;
    }
    const waiting = StreamWaits.#waitingByContext.get(this.context);
    if (!waiting || this.#fitsContextLimit(waiting, count)) return true;
    for (const waits of waiting) if (!waits.#isWaiting) waiting.delete(waits);
    return this.#fitsContextLimit(waiting, count);
  }

  #fitsContextLimit(waiting: ReadonlySet<StreamWaits>, count: number): boolean {
    if (!waiting.has(this) && waiting.size >= maxWaitingStreams()) return false;
    let queued = count;
    for (const waits of waiting) queued += waits.#queued;
    return queued <= MAX_WAITS_PER_CONTEXT;
  }

  /** Records that a wait was queued. */
  add(page: TimelinePage, { index, count }: TimelinePoint): void {
    this.#queued += 1;
    this.#afterEvent += 1;
    let awaited = this.#awaited.get(page);
    if (!awaited) {
      this.#dropReached();
      awaited = new Map();
      this.#awaited.set(page, awaited);
    }
    awaited.set(index, count);
    const waiting = StreamWaits.#waitingByContext.get(this.context) ?? new Set();
    StreamWaits.#waitingByContext.set(this.context, waiting.add(this));
  }

  /**
   * Records an event behind the queued waits if there are at least `minimum`. A reached counter
   * does not prove that the wait has run, because other work may hold the stream up.
   *
   * @throws CudaError
   */
  recordEvent(minimum: number, stream: Stream | undefined): void {
    if (this.#event || this.#afterEvent < minimum) return;
    const event = new InternalEvent(this.context);
    try {
      event.record(stream);
    } catch (error) {
      event[Symbol.dispose]();
      throw error;
    }
    this.#event = event;
    this.#afterEvent = 0;
  }

  #pollEvent(): void {
    if (!this.#event?.isDone) return;
    this.#event[Symbol.dispose]();
    this.#event = undefined;
    this.#queued = this.#afterEvent;
  }

  get #isWaiting(): boolean {
    this.#dropAfterReset();
    this.#pollEvent();
    this.#dropReached();
    return this.#awaited.size > 0;
  }

  /** Drops reached counters, so that the page of an ended connection is not kept alive. */
  #dropReached(): void {
    for (const [page, awaited] of this.#awaited) {
      for (const [index, count] of awaited)
        if (page.isReached({ index, count })) awaited.delete(index);
      if (awaited.size === 0) this.#awaited.delete(page);
    }
  }

  /** Forgets all waits, and the event, after a reset of the context. */
  #dropAfterReset(): void {
    if (this.context.epoch === this.#epoch) return;
    this.#epoch = this.context.epoch;
    this.#awaited.clear();
    this.#queued = 0;
    this.#afterEvent = 0;
    this.#event?.[Symbol.dispose]();
    this.#event = undefined;
  }
}

// ---- The exit of the process ----

/** The waiters that have queued at least one wait. */
const waiters = new Set<Waiter>();

// At process exit the driver waits for its streams. A stream that waits for another process, which
// may never get there, would hang the exit.
process.on('exit', () => {
  for (const waits of waiters) waits.abandon();
});
