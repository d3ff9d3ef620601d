import { OUT0, readInt32 } from '../../ffi/arena.ts';
import {
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  CU_STREAM_LEGACY,
  CU_STREAM_PER_THREAD,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { isSameFile } from '../../ffi/linux/libc.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUdeviceptr, CUevent, CUmemoryPool, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { randomId } from '../crypto.ts';
import type { Device } from '../device.ts';
import { CuffiError } from '../errors.ts';
import { addCapturedMemory, type CapturedMemory, isCapturing } from '../graph-capture.ts';
import { releaseOrWarn, runAll, Scope } from '../lifetime.ts';
import type { Stream } from '../stream.ts';
import { checkBoolean, checkOptions, formatBytes } from '../validate.ts';
import type { StreamOrderedRelease } from './buffer.ts';
import { orderAfterTransfers } from './host-copy.ts';
import { addContextFd, closeContextFd, ensureKeepaliveAllocation } from './physical-memory.ts';
import { type PoolCloseOptions, writeAccess } from './pool-attributes.ts';
import { addOrderedMemory, removeOrderedMemory } from './use-order.ts';

/**
 * The state of a pool that its finalizer and its buffers share. It never references the pool
 * itself.
 */
export interface PoolState {
  readonly buffers: Scope;
  /** The total size of the open buffers, in bytes. */
  byteLength: number;
  /** The other devices that have access. */
  readonly devicesWithAccess: Set<Device>;
  /** How other processes open it, once it was shared or if it was imported. */
  shared: SharedPool | undefined;
}

/** A pool, as other processes can open it. */
export interface SharedPool {
  /** 16 random bytes in hex. Never changes for the same pool. */
  readonly id: string;
  /** The pool's file descriptor: sent with its cuffi descriptor, closed with the pool. */
  readonly fd: number;
  /** Called when the pool is destroyed here and none of its memory is in use. Must not throw. */
  readonly onClose: Set<() => void>;
}

/** The driver calls that destroy a pool. */
export interface PoolTeardown {
  /** Revokes a device's access. */
  revokeAccess(device: Device): void;
  destroy(): void;
}

/**
 * @param isBorrowed whether only the pool's buffers, not the pool itself, are resources of the
 * context
 */
export const newPoolState = (context: Context, isBorrowed = false): PoolState => ({
  buffers: new Scope(context.resources, isBorrowed),
  byteLength: 0,
  devicesWithAccess: new Set(),
  shared: undefined,
});

/** Exports a pool. The first call creates its descriptor. */
export function sharePool(context: Context, handle: CUmemoryPool, state: PoolState): SharedPool {
  if (state.shared) return state.shared;
  check(
    cu.cuMemPoolExportToShareableHandle(OUT0, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
    'cuMemPoolExportToShareableHandle',
    () => 'sharing a memory pool',
  );
  const fd = addContextFd(context, readInt32(OUT0));
  for (const [known, pool] of sharedPools)
    if (pool.context.epoch !== pool.epoch) sharedPools.delete(known);
  sharedPools.set(handle, { fd, context, epoch: context.epoch });
  ensureKeepaliveAllocation(context.device);
  state.shared = { id: randomId(), fd, onClose: new Set() };
  return state.shared;
}

/** Whether this process created a pool, and has or may have shared it by the descriptor `fd`. */
export function isSharedPool(handle: CUmemoryPool, fd: number): boolean {
  const own = sharedPools.get(handle);
  if (own === undefined) return false;
  // After a reset the driver may use the handle, and the system the number of the descriptor, again.
  return own.context.epoch === own.epoch && isSameFile(own.fd, fd) !== false;
}

/**
 * Checks the options of a pool's `close()`.
 *
 * @throws CuffiError while buffers of the pool are open, unless the options close them too
 */
export function checkPoolClose(
  { buffers, byteLength }: PoolState,
  options: PoolCloseOptions | undefined,
  isClosed: boolean,
): void {
  const { buffers: closes } = checkOptions(options, ['buffers'], 'close');
  if (!checkBoolean(closes, 'buffers', false) && buffers.size > 0 && !isClosed)
    throw new CuffiError(
      (buffers.size === 1
        ? `1 buffer of this pool, ${formatBytes(byteLength)}, is`
        : `${buffers.size} buffers of this pool, ${formatBytes(byteLength)}, are`) +
        ' open: close what is open first, or close({ buffers: true })',
    );
}

/** How to destroy a pool that this process created. */
export const teardownOf = (handle: CUmemoryPool): PoolTeardown => ({
  revokeAccess: (device) => writeAccess(handle, device, false),
  destroy() {
    check(cu.cuMemPoolDestroy(handle), 'cuMemPoolDestroy');
    sharedPools.delete(handle);
  },
});

/**
 * Destroys a pool when the GPU is done with it. Does nothing after a reset, which destroyed it.
 */
export function destroyPool(
  context: Context,
  epoch: number,
  state: PoolState,
  teardown: PoolTeardown,
): void {
  const { releases } = context;
  const { shared, buffers } = state;
  const destroy = (): void => {
    if (context.epoch !== epoch) return;
    runAll([
      // A later pool may get the same handle, and would inherit the access that was granted to this
      // pool.
      ...[...state.devicesWithAccess].map((device) => () => teardown.revokeAccess(device)),
      () => teardown.destroy(),
    ]);
  };
  runAll([
    () => {
      for (const notify of shared?.onClose ?? []) notify();
    },
    () => shared && closeContextFd(context, shared.fd),
    // Buffers are open only after a leak, if pool and buffers were collected together.
    () => buffers.closeAll('its pool was closed'),
    () => releases.enqueue(destroy, { mayBlock: false }),
  ]);
}

/** Allocations that were not done when they were last queried, oldest first. */
const pendingAllocations = new Set<PoolAllocation>();
/** How many of them a further one queries. They never get more than the streams really hold up. */
const QUERIES_PER_ALLOCATION = 2;

/** An event behind an allocation. */
interface AllocationEvent {
  readonly event: CUevent;
  /** The context of the stream. */
  readonly context: Context;
  readonly epoch: number;
}

/**
 * Memory allocated from a pool: how streams wait for the allocation, and the stream that will free it.
 *
 * The driver may give out memory before earlier work on it is done, and orders only the stream of the
 * allocation behind that work.
 */
export class PoolAllocation implements StreamOrderedRelease, CapturedMemory {
  readonly #context: Context;
  readonly #epoch: number;
  readonly #state: PoolState;
  readonly #address: CUdeviceptr;
  readonly #byteLength: number;
  /** The stream of the allocation, and of the free unless another one is better. */
  #stream: Stream | undefined;
  #handle: CUstream;
  /** Undefined once the allocation is done. */
  #allocated: AllocationEvent | undefined;
  /** The other streams that work was queued in, by {@link keyOf}. They wait for the allocation. */
  #users: Map<unknown, Stream | undefined> | undefined;
  /** One of them, for the usual case of many uses in one stream. */
  #lastUser: Stream | undefined;
  #isUsedInOwnStream = false;
  /** Whether the closer named the stream of the free. */
  #isStreamChosen = false;
  #isReleased = false;

  /** @param stream the stream of the allocation; undefined for the legacy default stream */
  constructor(
    context: Context,
    state: PoolState,
    address: CUdeviceptr,
    byteLength: number,
    stream: Stream | undefined,
  ) {
    this.#context = context;
    this.#epoch = context.epoch;
    this.#state = state;
    this.#address = address;
    this.#byteLength = byteLength;
    this.#stream = stream;
    this.#handle = stream?.queryHandle ?? (0 as CUstream);
    state.byteLength += byteLength;
    addOrderedMemory();
  }

  /**
   * Records an event behind the allocation, which is not done. Later work of the stream must not delay
   * other streams, so this comes right behind the allocation.
   *
   * @throws CudaError; then the memory is freed
   */
  recordAllocation(): void {
    try {
      this.#record();
    } catch (error) {
      releaseOrWarn(() => this.release());
      throw error;
    }
    let queries = QUERIES_PER_ALLOCATION;
    for (const oldest of pendingAllocations) {
      if (queries === 0 || oldest.#isPending()) break;
      queries -= 1;
    }
    pendingAllocations.add(this);
  }

  #record(): void {
    const handle = this.#handle;
    const context = this.#stream?.context ?? this.#context;
    const { workTracker, epoch } = context;
    const event = context.run(() => workTracker.recordBehind(handle));
    this.#allocated = { event, context, epoch };
  }

  /** Whether the allocation is not done. */
  #isPending(): boolean {
    const { event, context, epoch } = this.#allocated ?? {};
    if (event === undefined || context === undefined) return false;
    if (context.epoch === epoch && cu.cuEventQuery(event) === CUresult.CUDA_ERROR_NOT_READY)
      return true;
    this.#forgetEvent();
    return false;
  }

  #forgetEvent(): void {
    if (!this.#allocated) return;
    const { context, event } = this.#allocated;
    this.#allocated = undefined;
    pendingAllocations.delete(this);
    context.workTracker.releaseEvent(event);
  }

  /** Makes a stream that is about to use the memory wait for the allocation, at the first use. */
  orderUse(stream: Stream | undefined): void {
    if (isCapturing() && this.#addToCapture(stream)) return;
    if (stream !== undefined && stream === this.#lastUser) return;
    if (this.#isAllocationStream(stream)) {
      this.#isUsedInOwnStream = true;
      return;
    }
    const key = this.#keyOf(stream);
    // A closed stream has left its handle to another one.
    if (this.#users?.has(key) && (isDefault(stream) || this.#users.get(key) === stream)) return;
    if (this.#isPending()) this.#makeWait(stream, this.#allocated as AllocationEvent);
    this.#users ??= new Map();
    this.#users.set(key, stream);
    this.#lastUser = stream;
  }

  /**
   * Leaves the order to each launch of the graph: the event would end the capture. Returns false for
   * a stream that is not captured.
   */
  #addToCapture(stream: Stream | undefined): boolean {
    const handle = stream?.queryHandle ?? CU_STREAM_LEGACY;
    return handle > CU_STREAM_PER_THREAD && addCapturedMemory(handle, this);
  }

  #makeWait(stream: Stream | undefined, allocated: AllocationEvent): void {
    const { event } = allocated;
    const wait = (handle: CUstream): void =>
      check(
        cu.cuStreamWaitEvent(handle, event, 0),
        'cuStreamWaitEvent',
        () => `waiting for an allocation of ${formatBytes(this.#byteLength)} in another stream`,
      );
    if (stream) stream.enqueue(wait);
    else this.#context.enqueue(wait);
    const { workCounters } = allocated.context;
    if (workCounters.isActive && workCounters.isCounted(this.#handle)) {
      const within = stream?.context ?? this.#context;
      within.workCounters.addEventWait(stream?.queryHandle ?? CU_STREAM_LEGACY);
    }
  }

  #isAllocationStream(stream: Stream | undefined): boolean {
    if (stream === this.#stream) return true;
    if (this.#stream?.closed) return false;
    return this.#keyOf(stream) === this.#keyOf(this.#stream);
  }

  /** Tells streams apart. Each call that names a default stream may make a new object of it. */
  #keyOf(stream: Stream | undefined): unknown {
    const handle = stream?.queryHandle ?? CU_STREAM_LEGACY;
    const isForeignDefault =
      stream && handle <= CU_STREAM_PER_THREAD && stream.context !== this.#context;
    return isForeignDefault ? stream.context : handle;
  }

  setStream(stream: Stream): void {
    this.orderUse(stream);
    this.#stream = stream;
    this.#handle = stream.queryHandle;
    this.#isStreamChosen = true;
  }

  /** Queues the free. Does nothing after a reset, which freed the memory. */
  release(): void {
    if (!this.#isReleased) removeOrderedMemory();
    this.#isReleased = true;
    this.#state.byteLength -= this.#byteLength;
    this.#free();
    this.#forgetEvent();
  }

  #free(): void {
    if (this.#context.epoch !== this.#epoch) return;
    if (isCapturing()) {
      this.#freeLater();
      return;
    }
    if (this.#users && !this.#isStreamChosen && !this.#chooseStream(this.#users)) {
      this.#freeLater();
      return;
    }
    this.#freeInStream();
  }

  #freeInStream(): void {
    if (this.#context.epoch !== this.#epoch) return;
    const handle = this.#stream?.untrackedHandle;
    if (handle === undefined) this.#freeInQueue();
    else this.#call(handle);
  }

  /**
   * Chooses a stream in which the free comes behind all work that was queued with the memory. Returns
   * false if there isn't one: no stream must wait for another one only for a free.
   */
  #chooseStream(users: ReadonlyMap<unknown, Stream | undefined>): boolean {
    const streams = [...users.values()];
    const isDone = (stream: Stream | undefined): boolean => isKnownIdle(stream, this.#context);
    if (streams.every(isDone)) return true;
    const [only] = streams;
    if (streams.length > 1 || !only?.isOwn) return false;
    if (this.#isUsedInOwnStream && !isDone(this.#stream)) return false;
    this.#stream = only;
    this.#handle = only.queryHandle;
    return true;
  }

  /** Frees when the work that is queued now is done. In a capture, the free would be a part of it. */
  // A separate function, because its closure would cost every call an allocation.
  #freeLater(): void {
    this.#context.releases.enqueue(() => this.#freeInStream(), { mayBlock: false });
  }

  #freeInQueue(): void {
    const call = (handle: CUstream): void => this.#call(handle);
    const stream = this.#stream;
    if (stream && !stream.closed) stream.enqueueUncounted(call);
    else if (stream?.context.workTracker.follows(this.#handle))
      // The stream was closed with work in it, and is destroyed only after that work.
      stream.context.run(() => call(this.#handle));
    else if (stream?.context.workTracker.hasWork(this.#handle))
      // The owner of a borrowed stream may have destroyed it, so nothing can be queued there any more.
      stream.context.releases.enqueue(() => this.#free(), { mayBlock: false });
    // The stream was closed while idle, or it is the default stream.
    else this.#context.run(() => call(0 as CUstream));
  }

  #call(stream: CUstream): void {
    orderAfterTransfers(this.#context, stream);
    check(cu.cuMemFreeAsync(this.#address, stream), 'cuMemFreeAsync');
  }
}

const isDefault = (stream: Stream | undefined): boolean =>
  stream === undefined || stream.queryHandle <= CU_STREAM_PER_THREAD;

/** Whether a stream can be asked, and has no work. The owner of a borrowed one may destroy it. */
function isKnownIdle(stream: Stream | undefined, context: Context): boolean {
  if (stream?.closed) return false;
  if (isDefault(stream))
    return (stream?.context ?? context).run(() => isIdle(stream?.queryHandle ?? (0 as CUstream)));
  return stream?.isOwn === true && isIdle(stream.queryHandle);
}

const isIdle = (handle: CUstream): boolean => cu.cuStreamQuery(handle) === CUresult.CUDA_SUCCESS;

/** The file descriptors of this process's pools: another process may send one back. */
const sharedPools = new Map<
  CUmemoryPool,
  { readonly fd: number; readonly context: Context; readonly epoch: number }
>();
