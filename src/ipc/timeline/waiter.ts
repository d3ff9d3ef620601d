import { CU_STREAM_LEGACY } from '../../../ffi/constants.ts';
import type { Context } from '../../context.ts';
import { CudaError } from '../../errors.ts';
import { InternalEvent } from '../../memory/internal-event.ts';
import type { Stream } from '../../stream.ts';
import type { TimelinePage } from './page.ts';
import { hasReached, latest, type TimelinePoint } from './point.ts';
import { comparedBits, waitForCounter } from './stream-memory-operations.ts';

/** Those that have queued any. */
const waiters = new Set<Waiter>();

// The driver waits for its streams while a process ends: one that waits for another process, which
// may never get there, would hang it.
process.on('exit', () => {
  for (const waits of waiters) waits.abandon();
});

/** The waits of this process's streams for the counters of another one. */
export class Waiter {
  readonly #page: TimelinePage;
  /** How far each word is waited for, by slot. */
  readonly #awaited = new Map<number, TimelinePoint>();
  /** The fewest bits of a word that a stream compares. */
  #bits: 32 | 64 = 64;
  #isDeviceRefused = false;

  constructor(page: TimelinePage) {
    this.#page = page;
  }

  isReached(points: readonly TimelinePoint[]): boolean {
    return points.every((point) => this.#page.isReached(point));
  }

  /**
   * Has later work of a stream, by default of the context's legacy default stream, wait for points;
   * the other process must live. Answers false where the device cannot, or too much waits already:
   * then the host has to.
   */
  enqueueWaits(points: readonly TimelinePoint[], context: Context, stream?: Stream): boolean {
    if (this.#isDeviceRefused || !this.#page.isMemoryFixed) return false;
    const unreached = points.filter((point) => !this.#page.isReached(point));
    if (unreached.length === 0) return true;
    try {
      const line = StreamWaits.of(context, stream);
      if (comparedBits(line.context) === 32) {
        // One word could not end all waits, were they further apart.
        if (unreached.some(({ count }) => count >= 2 ** 31)) return false;
        this.#bits = 32;
      }
      const needed = line.notAwaited(this.#page, unreached);
      if (needed.length === 0) return true;
      if (!line.hasRoom(needed.length, stream)) return false;
      for (const point of needed) {
        this.#enqueueWait(point, context, stream);
        line.add(this.#page, point);
      }
      line.recordEvent(WAITS_PER_EVENT, stream);
      return true;
    } catch (error) {
      if (!(error instanceof CudaError) || error.sticky) throw error;
      this.#isDeviceRefused = true;
      return false;
    }
  }

  /**
   * Ends all waits, as the other process is gone: no stream stays blocked. Answers how many points
   * were not reached.
   */
  abandon(): number {
    const awaited = [...this.#awaited.values()];
    const unreached = awaited.filter((point) => !this.#page.isReached(point));
    for (const point of awaited) this.#page.releaseWaits(point, this.#bits);
    this.#awaited.clear();
    return unreached.length;
  }

  /** The page is unmapped: nothing waits there any more. */
  unregister(): void {
    waiters.delete(this);
  }

  #enqueueWait(point: TimelinePoint, context: Context, stream: Stream | undefined): void {
    const { slot, count } = point;
    const waitContext = stream?.context ?? context;
    const address = this.#page.addressIn(waitContext, slot);
    waiters.add(this);
    // Noted before: a wait that nobody knows of could block for ever.
    const known = this.#awaited.get(slot);
    if (known === undefined || known.count < count) this.#awaited.set(slot, point);
    if (stream) stream.enqueue((queue) => waitForCounter(waitContext, queue, address, count));
    else context.enqueue((queue) => waitForCounter(waitContext, queue, address, count));
  }
}

/**
 * How many waits one stream may have queued, for whatever processes. Behind one that is not reached a
 * stream takes 1,020 pieces of work; the next blocks its caller inside the driver, who then cannot
 * even see that the other process has ended. Most of them are left to the work between the waits.
 */
const MAX_WAITS_PER_STREAM = 320;
/** How many the streams of a context may have in all: some of them may share a queue of the device. */
const MAX_WAITS_PER_CONTEXT = 512;
/** How many may be queued before it is looked at how many of them have run. */
const WAITS_PER_EVENT = MAX_WAITS_PER_STREAM / 2;

/**
 * How many streams of a context may wait at a time: one less than the device has queues for them. With
 * all of those in a wait nothing else of the process runs, nor does what another process waits for.
 */
const maxWaitingStreams = (): number => {
  const queues = Number(process.env['CUDA_DEVICE_MAX_CONNECTIONS']);
  return Number.isInteger(queues) && queues >= 1 && queues <= 32 ? Math.max(1, queues - 1) : 7;
};

/** The waits that one stream has queued, for the points of all other processes. */
class StreamWaits {
  static readonly #byStream = new WeakMap<Stream, StreamWaits>();
  static readonly #byDefaultStream = new WeakMap<Context, StreamWaits>();
  /** Those of a context that may have to wait. */
  static readonly #waitingByContext = new WeakMap<Context, Set<StreamWaits>>();

  readonly context: Context;
  #epoch: number;
  /** Of each page how far each word is waited for, by slot. */
  readonly #awaited = new Map<TimelinePage, Map<number, number>>();
  /** How many waits may not have run yet, and how many of them are behind the mark. */
  #queued = 0;
  #afterEvent = 0;
  #event: InternalEvent | undefined;

  private constructor(context: Context) {
    this.context = context;
    this.#epoch = context.epoch;
  }

  /** That of a stream, by default of the legacy default stream. @throws ClosedError */
  static of(context: Context, stream: Stream | undefined): StreamWaits {
    const isDefault = stream === undefined || stream.handle === CU_STREAM_LEGACY;
    const within = stream?.context ?? context;
    const line =
      (isDefault ? StreamWaits.#byDefaultStream.get(within) : StreamWaits.#byStream.get(stream)) ??
      new StreamWaits(within);
    if (isDefault) StreamWaits.#byDefaultStream.set(within, line);
    else StreamWaits.#byStream.set(stream, line);
    line.#dropAfterReset();
    return line;
  }

  /** Of each word the furthest point, where the stream does not wait for as much already. */
  notAwaited(page: TimelinePage, points: readonly TimelinePoint[]): TimelinePoint[] {
    const awaited = this.#awaited.get(page);
    return latest(points).filter(({ slot, count }) => {
      const known = awaited?.get(slot);
      return known === undefined || !hasReached(known, count);
    });
  }

  /** Whether so many waits more may be queued. @throws CudaError where the context is lost */
  hasRoom(count: number, stream: Stream | undefined): boolean {
    if (this.#queued + count > MAX_WAITS_PER_STREAM) this.#pollEvent();
    if (this.#queued + count > MAX_WAITS_PER_STREAM) {
      this.recordEvent(1, stream);
      return false;
    }
    const waiting = StreamWaits.#waitingByContext.get(this.context);
    if (!waiting || this.#fitsContextLimit(waiting, count)) return true;
    for (const line of waiting) if (!line.#isWaiting) waiting.delete(line);
    return this.#fitsContextLimit(waiting, count);
  }

  #fitsContextLimit(waiting: ReadonlySet<StreamWaits>, count: number): boolean {
    if (!waiting.has(this) && waiting.size >= maxWaitingStreams()) return false;
    let queued = count;
    for (const line of waiting) queued += line.#queued;
    return queued <= MAX_WAITS_PER_CONTEXT;
  }

  /** A wait is queued. */
  add(page: TimelinePage, { slot, count }: TimelinePoint): void {
    this.#queued += 1;
    this.#afterEvent += 1;
    let awaited = this.#awaited.get(page);
    if (!awaited) {
      this.#dropReached();
      awaited = new Map();
      this.#awaited.set(page, awaited);
    }
    awaited.set(slot, count);
    const waiting = StreamWaits.#waitingByContext.get(this.context) ?? new Set();
    StreamWaits.#waitingByContext.set(this.context, waiting.add(this));
  }

  /**
   * Marks the waits that are queued, where they are so many: that they are reached does not say that
   * they have run, as the stream may stand before them for another reason.
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

  /** A page whose connection has ended must not be held. */
  #dropReached(): void {
    for (const [page, awaited] of this.#awaited) {
      for (const [slot, count] of awaited)
        if (page.isReached({ slot, count })) awaited.delete(slot);
      if (awaited.size === 0) this.#awaited.delete(page);
    }
  }

  /** A reset of the context has ended the waits, and taken the mark. */
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
