/** Page-locks host memory in place, each page once. */

import { OUT0, readHandle } from '../../ffi/arena.ts';
import { CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import { libc } from '../../ffi/linux/libc.ts';
import { CUresult } from '../../ffi/results.ts';
import type { Address, CUdeviceptr } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { formatBytes } from '../validate.ts';
import { describePendingReleases } from './allocate-with-retry.ts';
import { roundUp } from './chunks.ts';

/** Which contexts and devices can use page-locked memory. */
export interface LockFlags {
  readonly portable: boolean;
  readonly mapped: boolean;
}

/** A range of host memory. */
export interface HostRange {
  readonly address: Address;
  readonly byteLength: number;
  /** Its name, for error messages. */
  readonly what: string;
  /** What must not be garbage collected while its pages are locked. */
  readonly memory?: unknown;
}

/** Memory that is page-locked. */
export interface PageLock {
  /**
   * Notes that {@link unlock} is about to be enqueued as a release: the same range can then be locked
   * again at once.
   */
  markReleasing(): void;
  /** Unlocks the memory, which may block on the GPU. Does nothing if a new lock has taken it over. */
  unlock(): void;
}

/**
 * Locks the pages of a range.
 *
 * @throws RangeError if a page is already locked
 */
export function lockPages(context: Context, range: HostRange, flags: LockFlags): PageLock {
  const releasing = findReleasing(context, range, flags);
  if (releasing) releasing.state = 'transferred';
  else registerPages(context, range, flags);
  const { pages, forget } = trackPages(context, range, flags);
  return {
    markReleasing() {
      if (pages.state === 'locked') pages.state = 'releasing';
    },
    unlock() {
      if (pages.state === 'transferred') return;
      failedUnlocks.add(pages);
      pages.state = 'locked';
      if (context.epoch === pages.epoch)
        check(cu.cuMemHostUnregister(range.address), 'cuMemHostUnregister');
      forget();
    },
  };
}

/** Calls `lock`. If the driver is out of memory, runs pending releases and calls it again. */
export function lockWithRetry(
  { releases }: Context,
  call: FunctionName,
  byteLength: number,
  lock: () => CUresult,
): void {
  let status = lock();
  if (status === CUresult.CUDA_ERROR_OUT_OF_MEMORY && releases.size > 0) {
    releases.drainReady(true);
    status = lock();
  }
  check(status, call, () => `page-locking ${formatBytes(byteLength)} of host memory`);
}

/**
 * Tracks the pages of a range as locked while the returned function is alive. Calling that function
 * ends the tracking.
 */
export const trackLockedPages = (
  context: Context,
  range: HostRange,
  flags: LockFlags,
): (() => void) => trackPages(context, range, flags).forget;

/** Stops tracking the pages of a range that is about to be unmapped. */
export function untrackPages(address: Address, byteLength: number): void {
  for (const reference of trackedPages) {
    const pages = reference.deref();
    if (pages && address <= pages.begin && pages.end <= address + byteLength)
      pages.state = 'unlocked';
  }
}

/**
 * The context that page-locked all of a range, if the lock is valid for `context` too. Otherwise
 * undefined: the range counts as pageable memory.
 */
export function findLockingContext(
  context: Context,
  address: Address,
  byteLength: number,
): Context | undefined {
  for (const pages of lockedPages()) {
    const isUsable = pages.portable || pages.context === context;
    if (isUsable && pages.begin <= address && address + byteLength <= pages.end)
      return pages.context;
  }
  return undefined;
}

/** The device address of page-locked, mapped memory. */
export const devicePointerOf = (context: Context, address: Address): CUdeviceptr =>
  context.run(() => {
    check(cu.cuMemHostGetDevicePointer_v2(OUT0, address, 0), 'cuMemHostGetDevicePointer_v2');
    return readHandle<CUdeviceptr>(OUT0);
  });

// ---- The pages that are locked now, in any context ----

/** A range with locked pages, from `begin` up to `end`. */
interface LockedPages extends HostRange, LockFlags {
  readonly begin: number;
  readonly end: number;
  readonly context: Context;
  readonly epoch: number;
  /**
   * Releasing: the unlock waits for the GPU, and a new lock of the same range can take this one
   * over. Transferred: a new lock did so, and the old unlock does nothing.
   */
  state: 'locked' | 'releasing' | 'transferred' | 'unlocked';
}

/**
 * Weak references: the lock keeps its pages alive. A reset of the context drops the lock, and with it a
 * pinned array.
 */
const trackedPages = new Set<WeakRef<LockedPages>>();
/** Pages that the driver failed to unlock: they stay locked, and their memory stays alive. */
const failedUnlocks = new Set<LockedPages>();

function trackPages(
  context: Context,
  range: HostRange,
  { portable, mapped }: LockFlags,
): { readonly pages: LockedPages; readonly forget: () => void } {
  const pages: LockedPages = {
    ...range,
    ...pageRange(range),
    context,
    portable,
    mapped,
    epoch: context.epoch,
    state: 'locked',
  };
  const reference = new WeakRef(pages);
  trackedPages.add(reference);
  const forget = (): void => {
    pages.state = 'unlocked';
    trackedPages.delete(reference);
    failedUnlocks.delete(pages);
  };
  return { pages, forget };
}

/** The pages that are locked now. A reset ends all earlier locks. */
function* lockedPages(): Generator<LockedPages> {
  for (const reference of trackedPages) {
    const pages = reference.deref();
    if (pages && isStillLocked(pages)) {
      yield pages;
      continue;
    }
    trackedPages.delete(reference);
    if (pages) failedUnlocks.delete(pages);
  }
}

const isStillLocked = ({ context, epoch, state }: LockedPages): boolean =>
  context.epoch === epoch && (state === 'locked' || state === 'releasing');

/**
 * Finds a lock of the same range, flags and context whose unlock waits for the GPU.
 *
 * @throws RangeError if a page is locked in any other way
 */
function findReleasing(
  context: Context,
  range: HostRange,
  flags: LockFlags,
): LockedPages | undefined {
  const { begin, end } = pageRange(range);
  for (const other of lockedPages()) {
    if (other.begin >= end || begin >= other.end) continue;
    // The GPU may be done by now.
    other.context.releases.drainReady();
    if (!isStillLocked(other)) continue;
    const isSame =
      other.context === context &&
      other.address === range.address &&
      other.byteLength === range.byteLength &&
      other.portable === flags.portable &&
      other.mapped === flags.mapped;
    if (isSame && other.state === 'releasing') return other;
    throw new RangeError(
      `${range.what} shares a page with memory that is already page-locked` +
        (describePendingReleases(other.context) ||
          ': lock one larger array, or allocate a PinnedBuffer'),
    );
  }
  return undefined;
}

function registerPages(
  context: Context,
  { address, byteLength }: HostRange,
  flags: LockFlags,
): void {
  const bits =
    (flags.portable ? CU_MEMHOSTREGISTER_PORTABLE : 0) |
    (flags.mapped ? CU_MEMHOSTREGISTER_DEVICEMAP : 0);
  context.run(() =>
    lockWithRetry(context, 'cuMemHostRegister_v2', byteLength, () =>
      cu.cuMemHostRegister_v2(address, byteLength, bits),
    ),
  );
}

function pageRange({ address, byteLength }: HostRange): { begin: number; end: number } {
  const page = libc.getpagesize();
  return {
    begin: Math.floor(address / page) * page,
    end: roundUp(address + byteLength, page),
  };
}
