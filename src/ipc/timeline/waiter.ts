import { CU_STREAM_LEGACY } from '../../../ffi/constants.ts';
import type { Context } from '../../context.ts';
import { CudaError } from '../../errors.ts';
import { Mark } from '../../memory/internal-event.ts';
import type { Stream } from '../../stream.ts';
import type { PointPage } from './page.ts';
import { furthest, hasReached, type Point } from './point.ts';
import { comparedBits, waitForWord } from './stream-memory-operations.ts';

/** Those that have queued any. */
const all = new Set<Waits>();

// The driver waits for its streams while a process ends: one that waits for another process, which
// may never get there, would hang it.
process.on('exit', () => {
  for (const waits of all) waits.giveUp();
});

/** The waits of this process's streams for the counters of another one. */
export class Waits {
  readonly #page: PointPage;
  /** How far each word is waited for, by slot. */
  readonly #awaited = new Map<number, Point>();
  /** The fewest bits of a word that a stream compares. */
  #bits: 32 | 64 = 64;
  #isRefused = false;

  constructor(page: PointPage) {
    this.#page = page;
  }

  isReached(points: readonly Point[]): boolean {
    return points.every((point) => this.#page.isReached(point));
  }

  /**
   * Has later work of a stream, by default of the context's legacy default stream, wait for points;
   * the other process must live. Answers false where the device cannot, or too much waits already:
   * then the host has to.
   */
  queue(points: readonly Point[], context: Context, stream?: Stream): boolean {
    if (this.#isRefused || !this.#page.isFixed) return false;
    const unreached = points.filter((point) => !this.#page.isReached(point));
    if (unreached.length === 0) return true;
    try {
      const line = WaitLine.of(context, stream);
      if (comparedBits(line.context) === 32) {
        // One word could not end all waits, were they further apart.
        if (unreached.some(({ count }) => count >= 2 ** 31)) return false;
        this.#bits = 32;
      }
      const needed = line.notAwaited(this.#page, unreached);
      if (needed.length === 0) return true;
      if (!line.hasRoom(needed.length, stream)) return false;
      for (const point of needed) {
        this.#wait(point, context, stream);
        line.add(this.#page, point);
      }
      line.mark(MARKED, stream);
      return true;
    } catch (error) {
      if (!(error instanceof CudaError) || error.sticky) throw error;
      this.#isRefused = true;
      return false;
    }
  }

  /**
   * Ends all waits, as the other process is gone: no stream stays blocked. Answers how many points
   * were not reached.
   */
  giveUp(): number {
    const awaited = [...this.#awaited.values()];
    const missing = awaited.filter((point) => !this.#page.isReached(point));
    for (const point of awaited) this.#page.release(point, this.#bits);
    this.#awaited.clear();
    return missing.length;
  }

  /** The page is unmapped: nothing waits there any more. */
  end(): void {
    all.delete(this);
  }

  #wait(point: Point, context: Context, stream: Stream | undefined): void {
    const { slot, count } = point;
    const within = stream?.context ?? context;
    const address = this.#page.addressIn(within, slot);
    all.add(this);
    // Noted before: a wait that nobody knows of could block for ever.
    const known = this.#awaited.get(slot);
    if (known === undefined || known.count < count) this.#awaited.set(slot, point);
    if (stream) stream.enqueue((queue) => waitForWord(within, queue, address, count));
    else context.enqueue((queue) => waitForWord(within, queue, address, count));
  }
}

/**
 * How many waits one stream may have queued, for whatever processes. Behind one that is not reached a
 * stream takes 1,020 pieces of work; the next blocks its caller inside the driver, who then cannot
 * even see that the other process has ended. Most of them are left to the work between the waits.
 */
const MAX_QUEUED = 320;
/** How many the streams of a context may have in all: some of them may share a queue of the device. */
const MAX_QUEUED_IN_ALL = 512;
/** How many may be queued before it is looked at how many of them have run. */
const MARKED = MAX_QUEUED / 2;

/**
 * How many streams of a context may wait at a time: one less than the device has queues for them. With
 * all of those in a wait nothing else of the process runs, nor does what another process waits for.
 */
const maxWaiting = (): number => {
  const queues = Number(process.env['CUDA_DEVICE_MAX_CONNECTIONS']);
  return Number.isInteger(queues) && queues >= 1 && queues <= 32 ? Math.max(1, queues - 1) : 7;
};

/** The waits that one stream has queued, for the points of all other processes. */
class WaitLine {
  static readonly #ofStreams = new WeakMap<Stream, WaitLine>();
  static readonly #ofDefaults = new WeakMap<Context, WaitLine>();
  /** Those of a context that may have to wait. */
  static readonly #waiting = new WeakMap<Context, Set<WaitLine>>();

  readonly context: Context;
  #resets: number;
  /** Of each page how far each word is waited for, by slot. */
  readonly #awaited = new Map<PointPage, Map<number, number>>();
  /** How many waits may not have run yet, and how many of them are behind the mark. */
  #queued = 0;
  #behindMark = 0;
  #mark: Mark | undefined;

  private constructor(context: Context) {
    this.context = context;
    this.#resets = context.resets;
  }

  /** That of a stream, by default of the legacy default stream. @throws ClosedError */
  static of(context: Context, stream: Stream | undefined): WaitLine {
    const isDefault = stream === undefined || stream.handle === CU_STREAM_LEGACY;
    const within = stream?.context ?? context;
    const line =
      (isDefault ? WaitLine.#ofDefaults.get(within) : WaitLine.#ofStreams.get(stream)) ??
      new WaitLine(within);
    if (isDefault) WaitLine.#ofDefaults.set(within, line);
    else WaitLine.#ofStreams.set(stream, line);
    line.#forgetReset();
    return line;
  }

  /** Of each word the furthest point, where the stream does not wait for as much already. */
  notAwaited(page: PointPage, points: readonly Point[]): Point[] {
    const awaited = this.#awaited.get(page);
    return furthest(points).filter(({ slot, count }) => {
      const known = awaited?.get(slot);
      return known === undefined || !hasReached(known, count);
    });
  }

  /** Whether so many waits more may be queued. @throws CudaError where the context is lost */
  hasRoom(count: number, stream: Stream | undefined): boolean {
    if (this.#queued + count > MAX_QUEUED) this.#lookAtMark();
    if (this.#queued + count > MAX_QUEUED) {
      this.mark(1, stream);
      return false;
    }
    const waiting = WaitLine.#waiting.get(this.context);
    if (!waiting || this.#fitsBeside(waiting, count)) return true;
    for (const line of waiting) if (!line.#isWaiting) waiting.delete(line);
    return this.#fitsBeside(waiting, count);
  }

  #fitsBeside(waiting: ReadonlySet<WaitLine>, count: number): boolean {
    if (!waiting.has(this) && waiting.size >= maxWaiting()) return false;
    let queued = count;
    for (const line of waiting) queued += line.#queued;
    return queued <= MAX_QUEUED_IN_ALL;
  }

  /** A wait is queued. */
  add(page: PointPage, { slot, count }: Point): void {
    this.#queued += 1;
    this.#behindMark += 1;
    let awaited = this.#awaited.get(page);
    if (!awaited) {
      this.#forgetReached();
      awaited = new Map();
      this.#awaited.set(page, awaited);
    }
    awaited.set(slot, count);
    const waiting = WaitLine.#waiting.get(this.context) ?? new Set();
    WaitLine.#waiting.set(this.context, waiting.add(this));
  }

  /**
   * Marks the waits that are queued, where they are so many: that they are reached does not say that
   * they have run, as the stream may stand before them for another reason.
   *
   * @throws CudaError
   */
  mark(least: number, stream: Stream | undefined): void {
    if (this.#mark || this.#behindMark < least) return;
    const mark = new Mark(this.context);
    try {
      mark.record(stream);
    } catch (error) {
      mark[Symbol.dispose]();
      throw error;
    }
    this.#mark = mark;
    this.#behindMark = 0;
  }

  #lookAtMark(): void {
    if (!this.#mark?.reached) return;
    this.#mark[Symbol.dispose]();
    this.#mark = undefined;
    this.#queued = this.#behindMark;
  }

  get #isWaiting(): boolean {
    this.#forgetReset();
    this.#lookAtMark();
    this.#forgetReached();
    return this.#awaited.size > 0;
  }

  /** A page whose connection has ended must not be held. */
  #forgetReached(): void {
    for (const [page, awaited] of this.#awaited) {
      for (const [slot, count] of awaited)
        if (page.isReached({ slot, count })) awaited.delete(slot);
      if (awaited.size === 0) this.#awaited.delete(page);
    }
  }

  /** A reset of the context has ended the waits, and taken the mark. */
  #forgetReset(): void {
    if (this.context.resets === this.#resets) return;
    this.#resets = this.context.resets;
    this.#awaited.clear();
    this.#queued = 0;
    this.#behindMark = 0;
    this.#mark?.[Symbol.dispose]();
    this.#mark = undefined;
  }
}
