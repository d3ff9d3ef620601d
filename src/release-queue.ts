/** Releases in which the driver may wait for the GPU: queued until the GPU has finished with the resource. */

import { readSetting } from '../ffi/settings.ts';
import type { Wait } from './deadline.ts';
import { CuffiError } from './errors.ts';
import type { Fence } from './fence.ts';
import { isCapturing } from './graph-capture.ts';
import { releaseOrWarn } from './lifetime.ts';
import { beginRelease, endRelease } from './lost-context.ts';
import { pollInBackground, pollUntil } from './poller.ts';

/** What the queue needs to know about the work of its context. Neither method may throw. */
export interface ContextWork {
  /** Whether no work is known to be running. */
  isIdle(): boolean;
  /** Returns a fence behind the work that is queued now. */
  fence(): Fence;
}

/** How much may be pending before the queue counts as under pressure: see {@link ReleaseQueue}. */
export interface ReleaseLimits {
  readonly count: number;
  readonly byteLength: () => number;
}

/** What the queue knows about a release. */
export interface ReleaseOptions {
  /** How much device memory it frees, in bytes. */
  readonly byteLength?: number;
  /** Whether the driver may wait for all work of the context during the call. Default true. */
  readonly mayBlock?: boolean;
  /**
   * A slower release of the same resource that never waits, if there is one. It lacks the driver's own
   * protection of work that cuffi does not know of, so it only runs under memory pressure. If it throws,
   * it must not have released anything.
   */
  readonly nonBlockingRelease?: () => void;
}

interface PendingRelease {
  readonly release: () => void;
  readonly byteLength: number;
  readonly mayBlock: boolean;
  readonly nonBlockingRelease: (() => void) | undefined;
}

/** Releases that were queued together, and a fence behind the work that was queued before them. */
interface Batch {
  fence: Fence | undefined;
  pending: PendingRelease[];
}

/** A blocked stream would need ever more batches: beyond this number, the last batch takes all later releases. */
const MAX_BATCHES = 64;

/**
 * cuMemFree and similar calls wait for all work of the context: with a blocked stream, `close()` would
 * block the event loop. So a release only runs at once if no work is known to be running. Otherwise it
 * is queued until the context is idle; or, if its call never waits, until the work queued before it is
 * done.
 *
 * The queue is under pressure above the limits, in a flush, and when memory has run out. Then the
 * non-blocking releases run too: a GPU that is never idle frees memory as well.
 */
export class ReleaseQueue {
  readonly #work: ContextWork;
  readonly #limits: ReleaseLimits;
  readonly #isContextLost: () => boolean;
  #batches: Batch[] = [];
  /** What was queued since the last batch was closed. */
  #unbatched: PendingRelease[] = [];
  #size = 0;
  #byteLength = 0;
  /** What was queued since pressure last caused a drain. */
  #newCount = 0;
  #newByteLength = 0;
  /** Tells the background poll, if there is one, that more was queued. */
  #resetPollInterval: (() => void) | undefined;
  #isDraining = false;
  #deferrals = 0;
  /** Counts the resets of the context: a release that is running may cause one. */
  #epoch = 0;

  /** @param isContextLost whether the context is known to be lost */
  constructor(
    work: ContextWork,
    limits: ReleaseLimits,
    isContextLost: () => boolean = () => false,
  ) {
    this.#work = work;
    this.#limits = limits;
    this.#isContextLost = isContextLost;
  }

  /** How many releases are pending. */
  get size(): number {
    return this.#size;
  }

  /** How many bytes of device memory they will free. */
  get byteLength(): number {
    return this.#byteLength;
  }

  /** Runs `release` now if it cannot block; else later. */
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
   * Runs the releases that cannot block. Returns whether the queue is empty.
   *
   * @param underPressure whether non-blocking releases run too; by default, if the limits are exceeded
   */
  drainReady(underPressure: boolean = this.#exceedsLimits(this.#size, this.#byteLength)): boolean {
    if (this.#size === 0) return true;
    // A release may queue others.
    if (this.#isPaused || this.#isDraining) return false;
    this.#isDraining = true;
    // A step that fails may be tried in another way: only the last error is reported.
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

  /** Whether a scope of {@link defer} is open. */
  get isDeferred(): boolean {
    return this.#deferrals > 0;
  }

  /**
   * Resolves when all queued releases have run.
   *
   * @param waiting called as long as it waits; what it throws ends the wait
   * @throws CuffiError while a scope of {@link defer} is open: it would wait for the end of the scope
   */
  async flush(wait: Wait = {}, waiting: () => void = () => {}): Promise<void> {
    if (this.#size > 0 && this.isDeferred)
      throw new CuffiError(
        `deferCleanup() holds back ${this.#size} releases: call flush() after the end of its scope`,
      );
    const isEmpty = (): boolean => {
      if (this.drainReady(true)) return true;
      waiting();
      return false;
    };
    // Work that is queued after this call does not count, and the first poll may come a turn later.
    this.drainReady(true);
    await pollUntil(isEmpty, wait);
  }

  /** Releases nothing until this scope, and all others that are open, end. */
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

  /** Drops the pending releases, as the context was reset. */
  clear(): void {
    this.#epoch += 1;
    for (const batch of this.#batches) batch.pending = [];
    this.#batches = [];
    this.#unbatched = [];
    this.#size = 0;
    this.#byteLength = 0;
  }

  /** Whether releases, and queries of the driver for them, must wait. */
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

  /** Runs all releases, even inside a scope of {@link defer}: for an idle context, as before a reset. */
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

  /** If the non-blocking release fails, it has released nothing: the ordinary release runs later. */
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
 * Returns how many releases, and how much memory, may be pending before the queue is under pressure:
 * `CUFFI_DEALLOCS_COUNT` (default 10), and `CUFFI_DEALLOCS_RATIO`, a fraction of the device's memory
 * (default 0.2). They are numba's `NUMBA_CUDA_MAX_PENDING_DEALLOCS_COUNT` and `_RATIO`.
 *
 * @throws RangeError for an invalid count or ratio
 */
export function releaseLimits(totalMemory: () => number): ReleaseLimits {
  const count = readSetting('CUFFI_DEALLOCS_COUNT') ?? 10;
  const ratio = readSetting('CUFFI_DEALLOCS_RATIO') ?? 0.2;
  let byteLength: number | undefined;
  return {
    count,
    byteLength: () => {
      try {
        byteLength ??= ratio * totalMemory();
      } catch {
        // Called by close() and the poller, which must not fail for it: without a size, no limit.
      }
      return byteLength ?? Number.POSITIVE_INFINITY;
    },
  };
}
