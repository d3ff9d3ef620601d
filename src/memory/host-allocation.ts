/** Allocation of page-locked host memory, for PinnedBuffer and MappedMemory. */

import { OUT0, readHandle } from '../../ffi/arena.ts';
import {
  CU_MEMHOSTALLOC_DEVICEMAP,
  CU_MEMHOSTALLOC_PORTABLE,
  CU_MEMHOSTALLOC_WRITECOMBINED,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { closeFd, SystemError, statusOfFd } from '../../ffi/linux/libc.ts';
import { allocatePages, createSealedMemfd, isSealedMemfd } from '../../ffi/linux/memfd.ts';
import { type HostMapping, mapAnonymous, mapMemfd, pagesByteLength } from '../../ffi/linux/mmap.ts';
import type { Address, CUdeviceptr } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { NotSupportedError } from '../errors.ts';
import { releaseOrWarn } from '../lifetime.ts';
import { formatBytes } from '../validate.ts';
import {
  HostViews,
  type ViewedMemory,
  type ViewsReference,
  viewDriverMemory,
  warnOfDetachedView,
} from './host-views.ts';
import {
  devicePointerOf,
  type LockFlags,
  lockPages,
  lockWithRetry,
  type PageLock,
  trackLockedPages,
  untrackPages,
} from './page-lock.ts';

/** The kind of page-locked memory to allocate. */
export interface HostMemoryKind extends LockFlags {
  readonly writeCombined: boolean;
}

/** Page-locked memory and how to release it. */
export interface HostAllocation extends ViewedMemory {
  readonly address: Address;
  /** Its device address; undefined unless it is mapped. */
  readonly devicePointer: CUdeviceptr | undefined;
}

/** @throws RangeError, NotSupportedError, CudaError; then nothing stays allocated */
export function allocateHost(
  context: Context,
  byteLength: number,
  kind: HostMemoryKind,
): HostAllocation {
  assertSupported(context, kind);
  return kind.writeCombined
    ? allocateWriteCombined(context, byteLength, kind)
    : allocateRegistered(context, byteLength, kind);
}

/** Page-locked memory over a memfd. */
export interface SharedHostAllocation extends HostAllocation {
  /** The descriptor of the memfd. The release closes it. */
  readonly fd: number;
}

/**
 * Allocates memory that other processes can map.
 *
 * @throws RangeError, NotSupportedError, CudaError; then nothing stays allocated
 */
export function allocateShareable(
  context: Context,
  byteLength: number,
  flags: LockFlags,
): SharedHostAllocation {
  assertSupported(context, flags);
  const size = pagesByteLength(byteLength);
  // The kernel would allocate pages until it ends processes.
  if (size > process.availableMemory()) throw outOfMemoryError(byteLength);
  const fd = outOfMemory(byteLength, () => {
    const created = createSealedMemfd('cuffi-pinned', size);
    try {
      // Now: locking the pages would allocate them at whichever process locks first.
      allocatePages(created, size);
      return created;
    } catch (error) {
      closeFd(created);
      throw error;
    }
  });
  return openShared(context, fd, byteLength, flags);
}

/**
 * Maps and locks memory that another process allocated with {@link allocateShareable}.
 *
 * @param fd owned from now on, also if it throws
 * @throws RangeError for any other descriptor: memory that can shrink could crash this process, and
 * locking pages that do not exist yet would allocate them here; NotSupportedError, CudaError
 */
export function openShareable(
  context: Context,
  fd: number,
  byteLength: number,
  flags: LockFlags,
): SharedHostAllocation {
  try {
    assertSupported(context, flags);
    const size = pagesByteLength(byteLength);
    if (!isSealedMemfd(fd, size) || (statusOfFd(fd)?.storedByteLength ?? 0) < size)
      throw new RangeError(
        `the memory is not sealed, or does not have ${formatBytes(size)} allocated`,
      );
  } catch (error) {
    closeFd(fd);
    throw error;
  }
  return openShared(context, fd, byteLength, flags);
}

function openShared(
  context: Context,
  fd: number,
  byteLength: number,
  flags: LockFlags,
): SharedHostAllocation {
  try {
    const mapping = outOfMemory(byteLength, () => mapMemfd(fd, byteLength));
    const allocation = registerMapping(context, byteLength, mapping, flags);
    const release = (): void => {
      closeFd(fd);
      allocation.release();
    };
    return { ...allocation, fd, release };
  } catch (error) {
    closeFd(fd);
    throw error;
  }
}

/** Enqueues the release of what was acquired before an error that the caller throws next. */
export function enqueueReleaseQuietly({ releases }: Context, release: () => void): void {
  releaseOrWarn(() => releases.enqueue(release));
}

/** @throws NotSupportedError if the device does not support this kind */
export function assertSupported({ device }: Context, kind: Partial<HostMemoryKind>): void {
  if (!kind.writeCombined && device.attribute('hostRegisterSupported') === 0)
    throw new NotSupportedError(`${device} cannot page-lock memory of the process`);
  if (kind.mapped && device.attribute('canMapHostMemory') === 0)
    throw new NotSupportedError(`${device} cannot access host memory`);
}

/**
 * Maps memory and registers it. This costs less than the driver's own allocation, and the mapping
 * can be retired: a view that outlives it reads zeros.
 */
function allocateRegistered(
  context: Context,
  byteLength: number,
  kind: HostMemoryKind,
): HostAllocation {
  const mapping = outOfMemory(byteLength, () => mapAnonymous(byteLength));
  return registerMapping(context, byteLength, mapping, kind);
}

/** Registers a mapping, and unmaps it if that fails. */
function registerMapping(
  context: Context,
  byteLength: number,
  mapping: HostMapping,
  kind: LockFlags,
): HostAllocation {
  let lock: PageLock | undefined;
  try {
    const { address } = mapping;
    lock = lockPages(context, { ...mapping, what: 'the new buffer' }, kind);
    const devicePointer = kind.mapped ? devicePointerOf(context, address) : undefined;
    const { viewsReference, release } = viewRegisteredMemory(context, byteLength, mapping, lock);
    return { address, devicePointer, viewsReference, release };
  } catch (error) {
    enqueueReleaseQuietly(context, () => {
      lock?.unlock();
      mapping.unmap();
    });
    throw error;
  }
}

const outOfMemoryError = (byteLength: number, cause?: SystemError): RangeError =>
  new RangeError(
    `the system cannot allocate ${formatBytes(byteLength)} of host memory: close buffers that are no ` +
      'longer needed, or ask for less',
    cause && { cause },
  );

/** Calls `allocate`. @throws RangeError if the system has no memory */
function outOfMemory<T>(byteLength: number, allocate: () => T): T {
  try {
    return allocate();
  } catch (error) {
    if (!(error instanceof SystemError)) throw error;
    throw outOfMemoryError(byteLength, error);
  }
}

/** A mapping that was registered with the driver. */
interface RegisteredMapping {
  readonly context: Context;
  readonly mapping: HostMapping;
  /** Stuck: the driver failed to unlock it, so its addresses must never be reused. */
  state: 'locked' | 'unlocked' | 'stuck';
}

const unmapWhenUnused = (registered: RegisteredMapping) => (): void => {
  const { context, mapping } = registered;
  if (registered.state === 'unlocked') mapping.unmap();
  else if (registered.state === 'locked') {
    // The context was reset, or another driver was selected. If the driver still has the pages
    // registered, they must be unregistered first.
    context.releases.enqueue(() => {
      cu.cuMemHostUnregister(mapping.address);
      untrackPages(mapping.address, mapping.byteLength);
      mapping.unmap();
    });
  }
};

function viewRegisteredMemory(
  context: Context,
  byteLength: number,
  mapping: HostMapping,
  lock: PageLock,
): ViewedMemory {
  const registered: RegisteredMapping = { context, mapping, state: 'locked' };
  const viewsReference: ViewsReference = {
    views: new HostViews(mapping.address, byteLength, unmapWhenUnused(registered)),
  };
  const release = (): void => {
    const { views } = viewsReference;
    viewsReference.views = undefined;
    if (!views) return;
    views.retire();
    // The queued release references the views, so the mapping stays until it has run or a reset
    // dropped it.
    context.releases.enqueue(() => unlockAndRetire(registered, views, lock));
  };
  return { viewsReference, release };
}

function unlockAndRetire(registered: RegisteredMapping, views: HostViews, lock: PageLock): void {
  try {
    lock.unlock();
    registered.state = 'unlocked';
  } catch (error) {
    registered.state = 'stuck';
    registered.mapping.retire();
    throw error;
  }
  if (!views.wasViewed) {
    views.cancelFinalizer();
    registered.mapping.unmap();
    return;
  }
  registered.mapping.retire();
  if (!views.hasDetachedView) return;
  views.cancelFinalizer();
  warnOfDetachedView(
    registered.mapping.byteLength,
    'they read zeros, and their addresses stay reserved',
  );
}

/**
 * Allocates through the driver: only its memory can be write-combined, but it cannot be retired.
 */
function allocateWriteCombined(
  context: Context,
  byteLength: number,
  kind: HostMemoryKind,
): HostAllocation {
  const { portable, mapped } = kind;
  const flags =
    CU_MEMHOSTALLOC_WRITECOMBINED |
    (portable ? CU_MEMHOSTALLOC_PORTABLE : 0) |
    (mapped ? CU_MEMHOSTALLOC_DEVICEMAP : 0);
  const { epoch } = context;
  const address = context.run(() => {
    lockWithRetry(context, 'cuMemHostAlloc', byteLength, () =>
      cu.cuMemHostAlloc(OUT0, byteLength, flags),
    );
    return readHandle<Address>(OUT0, cu.cuMemFreeHost);
  });
  const forget = trackLockedPages(context, { address, byteLength, what: 'the new buffer' }, kind);
  const free = (): void => {
    if (context.epoch === epoch) check(cu.cuMemFreeHost(address), 'cuMemFreeHost');
    forget();
  };
  let devicePointer: CUdeviceptr | undefined;
  try {
    devicePointer = mapped ? devicePointerOf(context, address) : undefined;
  } catch (error) {
    enqueueReleaseQuietly(context, free);
    throw error;
  }
  const { viewsReference, release } = viewDriverMemory(context, address, byteLength, free);
  return { address, devicePointer, viewsReference, release };
}
