/** Page-locking host memory where it lies, each page once. */
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import { libc } from '../../ffi/libc.ts';
import { CUresult } from '../../ffi/results.ts';
import type { Address, CUdeviceptr } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { describePending } from './room.ts';
import { roundUp } from './round-up.ts';

/** Who reaches page-locked memory. */
export interface LockFlags {
  readonly portable: boolean;
  readonly mapped: boolean;
}

/** A range of host memory. */
export interface HostRange {
  readonly address: Address;
  readonly byteLength: number;
  /** Its name, for messages. */
  readonly what: string;
  /** What must not be collected while its pages are locked. */
  readonly memory?: unknown;
}

/** Pages that are locked, from `begin` up to `end`. */
interface LockedPages {
  readonly begin: number;
  readonly end: number;
  readonly memory: unknown;
  readonly context: Context;
  readonly portable: boolean;
  readonly resets: number;
}

const locked = new Set<LockedPages>();

function pagesOf({ address, byteLength }: HostRange): { begin: number; end: number } {
  const page = libc.getpagesize();
  return {
    begin: Math.floor(address / page) * page,
    end: roundUp(address + byteLength, page),
  };
}

/** Remembers the pages of a range as locked; answers how to forget them. */
export function notePages(context: Context, range: HostRange, portable: boolean): () => void {
  const pages: LockedPages = {
    ...pagesOf(range),
    memory: range.memory,
    context,
    portable,
    resets: context.resets,
  };
  locked.add(pages);
  return () => {
    locked.delete(pages);
  };
}

/** What was locked before a reset is so no more. */
const isHeld = ({ context, resets }: LockedPages): boolean => context.resets === resets;

/** Forgets the pages of a range that is about to be unmapped. */
export function forgetPages(address: Address, byteLength: number): void {
  for (const pages of locked)
    if (address <= pages.begin && pages.end <= address + byteLength) locked.delete(pages);
}

/**
 * The context that has all of a range page-locked, where `context` too may rely on it; undefined
 * where it must be taken for ordinary memory.
 */
export function lockedIn(
  context: Context,
  address: Address,
  byteLength: number,
): Context | undefined {
  for (const pages of locked) {
    const isFor = pages.portable || pages.context === context;
    if (isHeld(pages) && isFor && pages.begin <= address && address + byteLength <= pages.end)
      return pages.context;
  }
  return undefined;
}

function requireUnlocked(range: HostRange): void {
  const { begin, end } = pagesOf(range);
  for (const other of locked) {
    if (!isHeld(other)) locked.delete(other);
    else if (other.begin < end && begin < other.end) requireFreed(other, range.what);
  }
}

/** Passes where the release of the other pages waited, and can run now. */
function requireFreed(other: LockedPages, what: string): void {
  const { releases } = other.context;
  releases.collect();
  if (!locked.has(other)) return;
  throw new RangeError(
    `${what} shares a page with memory that is page-locked already` +
      (describePending(other.context) || ': lock one larger array, or allocate a PinnedBuffer'),
  );
}

/** Calls `lock`; where the driver is out of memory, once more after releasing what can be. */
export function withLockableRoom(
  { releases }: Context,
  call: FunctionName,
  byteLength: number,
  lock: () => CUresult,
): void {
  let status = lock();
  if (status === CUresult.CUDA_ERROR_OUT_OF_MEMORY && releases.size > 0) {
    releases.collect(true);
    status = lock();
  }
  check(status, call, () => `page-locking ${byteLength} bytes of host memory`);
}

/**
 * Locks the pages of a range; answers how to unlock them, which may make the driver wait.
 *
 * @throws RangeError where a page is locked already
 */
export function lockPages(
  context: Context,
  range: HostRange,
  { portable, mapped }: LockFlags,
): () => void {
  requireUnlocked(range);
  const { address, byteLength } = range;
  const flags =
    (portable ? CU_MEMHOSTREGISTER_PORTABLE : 0) | (mapped ? CU_MEMHOSTREGISTER_DEVICEMAP : 0);
  const { resets } = context;
  context.run(() =>
    withLockableRoom(context, 'cuMemHostRegister_v2', byteLength, () =>
      cu.cuMemHostRegister_v2(address, byteLength, flags),
    ),
  );
  const forget = notePages(context, range, portable);
  return () => {
    if (context.resets === resets) check(cu.cuMemHostUnregister(address), 'cuMemHostUnregister');
    // Pages that the driver did not unlock stay noted, and their memory alive.
    forget();
  };
}

/** The address that the device knows page-locked, mapped memory by. */
export const devicePointerOf = (context: Context, address: Address): CUdeviceptr =>
  context.run(() => {
    check(cu.cuMemHostGetDevicePointer_v2(OUT0, address, 0), 'cuMemHostGetDevicePointer_v2');
    return readHandle<CUdeviceptr>(OUT0);
  });
