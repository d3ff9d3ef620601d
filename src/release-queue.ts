/** Releases that may make the driver wait for the GPU, kept until it is done with what they free. */

import { CuffiError } from './errors.ts';
import type { Fence } from './fence.ts';
import { isCapturing } from './graph-capture.ts';
import { releaseOrWarn } from './lifetime.ts';
import { beginRelease, endRelease } from './lost-context.ts';
import { pollInBackground, pollUntil, type WaitOptions } from './poller.ts';

/** What the queue asks about the work of its context. Neither may throw. */
export interface ContextWork {
  /** Whether no work is known to run. */
  isIdle(): boolean;
  /** The work that is queued now. */
  fence(): Fence;
}

/** How much may wait before the queue is short of room: see {@link ReleaseQueue}. */
export interface ReleaseLimits {
  readonly count: number;
  readonly byteLength: () => number;
}

/** What is known of a release. */
export interface ReleaseOptions {
  /** How much device memory it gives back. */
  readonly byteLength?: number;
  /** Whether the driver may wait for all work of the context in it. Default true. */
  readonly mayBlock?: boolean;
  /**
   * A dearer way to give the same back that never waits, where there is one. It comes without the
   * driver's own care for work that cuffi does not know of, so it is only taken for want of room.
   * Where it throws, nothing was given back.
   */
  readonly nonBlockingRelease?: () => void;
}

interface PendingRelease {
  readonly release: () => void;
  readonly byteLength: number;
  readonly mayBlock: boolean;
  readonly nonBlockingRelease: (() => void) | undefined;
}

/** Releases that were submitted in one turn, and the work that was queued before. */
interface Batch {
  fence: Fence | undefined;
  pending: PendingRelease[];
}

/** With a stream held up there would be a new batch a turn: the last one takes all the later. */
const MAX_BATCHES = 64;

/**
 * cuMemFree and its like wait for the work of the whole context: behind a stream that is held up,
 * `close()` would stop the event loop. So a release runs at once while nothing is known to run.
 * Otherwise it waits: until nothing runs; or, where its call never waits, until the work queued
 * before it is done. When more waits than the limits allow, in a flush, or when memory has run out,
 * the early ways are taken too: a GPU that is never idle gives back all the same.
 */
export class ReleaseQueue {
  readonly #work: ContextWork;
  readonly #limits: ReleaseLimits;
  readonly #isContextLost: () => boolean;
  #batches: Batch[] = [];
  /** What was submitted since the last batch was closed. */
  #unbatched: PendingRelease[] = [];
  #size = 0;
  #byteLength = 0;
  /** What was submitted since the queue was last looked through for want of room. */
  #newCount = 0;
  #newByteLength = 0;
  /** Says to the poll in the background, if there is one, that more was submitted. */
  #resetPollInterval: (() => void) | undefined;
  #isDraining = false;
  #deferrals = 0;
  /** Counts the resets: one may come while releases run, from one of them. */
  #epoch = 0;

  /** @param isOfLost whether the context is known to be lost */
  constructor(work: ContextWork, limits: ReleaseLimits, isOfLost: () => boolean = () => false) {
    this.#work = work;
    this.#limits = limits;
    this.#isContextLost = isOfLost;
  }

  /** How many releases wait. */
  get size(): number {
    return this.#size;
  }

  /** How many bytes of device memory they will give back. */
  get byteLength(): number {
    return this.#byteLength;
  }

  /** Runs `release` now if nothing can make it wait; else later. */
  enqueue(
    release: () => void,
    { byteLength = 0, mayBlock = true, nonBlockingRelease }: ReleaseOptions = {},
  ): void {
    if (this.#size === 0 && !this.#isPaused && this.#work.isIdle()) {
      release();
      return;
    }
    this.#unbatched.push({ release, byteLength, mayBlock, nonBlockingRelease });
    this.#size += 1;
    this.#byteLength += byteLength;
    this.#newCount += 1;
    this.#newByteLength += byteLength;
    if (this.#exceedsLimits(this.#newCount, this.#newByteLength)) {
      this.#newCount = 0;
      this.#newByteLength = 0;
      this.drainReady();
    }
    if (this.#size === 0) return;
    if (this.#resetPollInterval) {
      this.#resetPollInterval();
      return;
    }
    this.#resetPollInterval = pollInBackground(() => {
      const isEmpty = this.drainReady();
      if (isEmpty) this.#resetPollInterval = undefined;
      return isEmpty;
    });
  }

  /**
   * Runs what can be run without waiting; answers whether nothing waits any more.
   *
   * @param underPressure whether the early ways are taken, be the queue short of room or not
   */
  drainReady(underPressure: boolean = this.#exceedsLimits(this.#size, this.#byteLength)): boolean {
    if (this.#size === 0) return true;
    // A release may submit others.
    if (this.#isPaused || this.#isDraining) return false;
    this.#isDraining = true;
    // What fails on the way, and is tried otherwise, is said by what fails in the end.
    beginRelease();
    try {
      if (this.#work.isIdle()) this.drainAll();
      else {
        this.#closeBatch();
        for (const batch of this.#batches) this.#drainBatch(batch, underPressure);
        this.#batches = this.#batches.filter(({ pending }) => pending.length > 0);
      }
    } finally {
      endRelease();
      this.#isDraining = false;
    }
    return this.#size === 0;
  }

  /** Whether a scope is open in which nothing is released. */
  get isDeferred(): boolean {
    return this.#deferrals > 0;
  }

  /**
   * Resolves when everything that was submitted has been released.
   *
   * @param waiting called as long as it waits; what it throws ends the wait
   * @throws CuffiError in a deferral, whose end it would wait for
   */
  async flush(options: WaitOptions = {}, waiting: () => void = () => {}): Promise<void> {
    if (this.#size > 0 && this.isDeferred)
      throw new CuffiError(
        `${this.#size} releases are held back by deferCleanup(): flush when its scope has ended`,
      );
    const isEmpty = (): boolean => {
      if (this.drainReady(true)) return true;
      waiting();
      return false;
    };
    await pollUntil(isEmpty, options);
  }

  /** Releases nothing until the scope ends, and every other one that is open. */
  defer(): Disposable {
    this.#deferrals += 1;
    let isOpen = true;
    return {
      [Symbol.dispose]: () => {
        if (!isOpen) return;
        isOpen = false;
        this.#deferrals -= 1;
      },
    };
  }

  /** Forgets what waits, as the context was reset. */
  clear(): void {
    this.#epoch += 1;
    for (const batch of this.#batches) batch.pending = [];
    this.#batches = [];
    this.#unbatched = [];
    this.#size = 0;
    this.#byteLength = 0;
  }

  /** Whether nothing is released, nor the driver asked about it. */
  get #isPaused(): boolean {
    return this.#deferrals > 0 || isCapturing();
  }

  #exceedsLimits(count: number, byteLength: number): boolean {
    return count > this.#limits.count || byteLength > this.#limits.byteLength();
  }

  #closeBatch(): void {
    if (this.#unbatched.length === 0) return;
    const pending = this.#unbatched;
    this.#unbatched = [];
    const last = this.#batches.at(-1);
    if (last === undefined || this.#batches.length < MAX_BATCHES) {
      this.#batches.push({ fence: this.#work.fence(), pending });
      return;
    }
    last.fence?.dispose();
    last.fence = this.#work.fence();
    last.pending.push(...pending);
  }

  /** Runs all, in a deferral, too: for when nothing runs, as before a reset. */
  drainAll(): void {
    const batches = this.#batches;
    const unbatched = this.#unbatched;
    this.#batches = [];
    this.#unbatched = [];
    for (const { fence } of batches) fence?.dispose();
    const epoch = this.#epoch;
    for (const each of [...batches.flatMap(({ pending }) => pending), ...unbatched])
      if (this.#epoch === epoch) this.#run(each);
  }

  #drainBatch(batch: Batch, underPressure: boolean): void {
    if (batch.fence && !batch.fence.isDone()) return;
    batch.fence = undefined;
    const { pending } = batch;
    batch.pending = [];
    const epoch = this.#epoch;
    for (const each of pending) {
      if (this.#epoch !== epoch) return;
      if (!each.mayBlock) this.#run(each);
      else if (
        !underPressure ||
        !each.nonBlockingRelease ||
        !this.#tryNonBlocking(each, each.nonBlockingRelease)
      )
        batch.pending.push(each);
    }
  }

  /** Where the early way fails, nothing was released: the ordinary one is taken later. */
  #tryNonBlocking(each: PendingRelease, nonBlockingRelease: () => void): boolean {
    try {
      nonBlockingRelease();
    } catch {
      return false;
    }
    this.#subtract(each);
    return true;
  }

  #run(each: PendingRelease): void {
    this.#subtract(each);
    releaseOrWarn(each.release, this.#isContextLost());
  }

  #subtract({ byteLength }: PendingRelease): void {
    this.#size -= 1;
    this.#byteLength -= byteLength;
  }
}

/**
 * How many releases may wait for the GPU, and how much memory, before the queue is short of room:
 * `CUFFI_DEALLOCS_COUNT` (default 10) and `CUFFI_DEALLOCS_RATIO`, a part of the device's memory
 * (default 0.2), as numba's `NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT` and `_RATIO`.
 *
 * @throws RangeError for what is no count or no ratio
 */
export function releaseLimits(totalMemory: () => number): ReleaseLimits {
  const count = numberFromEnvironment('CUFFI_DEALLOCS_COUNT', 10);
  const ratio = numberFromEnvironment('CUFFI_DEALLOCS_RATIO', 0.2);
  if (!Number.isInteger(count))
    throw invalidEnvironment('CUFFI_DEALLOCS_COUNT', 'an integer of at least 0');
  if (ratio > 1) throw invalidEnvironment('CUFFI_DEALLOCS_RATIO', 'a number from 0 to 1');
  let byteLength: number | undefined;
  return {
    count,
    byteLength: () => {
      try {
        byteLength ??= ratio * totalMemory();
      } catch {
        // Asked by close() and between turns, which must not fail for it: it limits nothing now.
      }
      return byteLength ?? Number.POSITIVE_INFINITY;
    },
  };
}

/**
 * A number of the environment.
 *
 * @throws RangeError for what is not a number of at least 0
 */
export function numberFromEnvironment(name: string, fallback: number): number {
  const text = process.env[name];
  if (text === undefined || text === '') return fallback;
  const value = Number(text);
  if (!(value >= 0)) throw invalidEnvironment(name, 'a number of at least 0');
  return value;
}

const invalidEnvironment = (name: string, expected: string): RangeError =>
  new RangeError(`${name} must be ${expected}, not ${JSON.stringify(process.env[name])}`);
