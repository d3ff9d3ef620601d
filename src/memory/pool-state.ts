import { OUT0, readInt32 } from '../../ffi/arena.ts';
import { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { isSameFile } from '../../ffi/linux/libc.ts';
import type { CUdeviceptr, CUmemoryPool, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import type { Device } from '../device.ts';
import { CuffiError } from '../errors.ts';
import { isCapturing } from '../graph-capture.ts';
import { runAll, Scope } from '../lifetime.ts';
import type { Stream } from '../stream.ts';
import { checkBoolean, checkOptions, formatBytes } from '../validate.ts';
import type { StreamOrderedRelease } from './buffer.ts';
import { addContextFd, closeContextFd } from './context-fds.ts';
import { orderAfterTransfers } from './host-copy.ts';
import { ensureKeepaliveAllocation } from './physical-memory.ts';
import type { PoolCloseOptions } from './pool-attributes.ts';
import { writeAccess } from './pool-attributes.ts';
import { randomId } from './random-id.ts';

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
  sharedPools.set(handle, fd);
  ensureKeepaliveAllocation(context.device);
  state.shared = { id: randomId(), fd, onClose: new Set() };
  return state.shared;
}

/** Whether this process created a pool, and has or may have shared it by the descriptor `fd`. */
export function isSharedPool(handle: CUmemoryPool, fd: number): boolean {
  const ownFd = sharedPools.get(handle);
  return ownFd !== undefined && isSameFile(ownFd, fd) !== false;
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

/** Memory allocated from a pool, with the stream that will free it. */
export class PoolAllocation implements StreamOrderedRelease {
  readonly #context: Context;
  readonly #epoch: number;
  readonly #state: PoolState;
  readonly #address: CUdeviceptr;
  readonly #byteLength: number;
  #stream: Stream | undefined;
  #handle: CUstream;

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
    this.#handle = stream?.handle ?? (0 as CUstream);
    state.byteLength += byteLength;
  }

  setStream(stream: Stream): void {
    this.#stream = stream;
    this.#handle = stream.handle;
  }

  /** Queues the free. Does nothing after a reset, which freed the memory. */
  release(): void {
    this.#state.byteLength -= this.#byteLength;
    this.#free();
  }

  #free(): void {
    if (this.#context.epoch !== this.#epoch) return;
    if (isCapturing()) {
      this.#freeAfterCapture();
      return;
    }
    const handle = this.#stream?.untrackedHandle;
    if (handle === undefined) this.#freeInQueue();
    else this.#call(handle);
  }

  // A separate function, because its closure would cost every call an allocation.
  #freeAfterCapture(): void {
    // A free queued now would become part of the graph.
    this.#context.releases.enqueue(() => this.#free(), { mayBlock: false });
  }

  #freeInQueue(): void {
    const call = (handle: CUstream): void => this.#call(handle);
    const stream = this.#stream;
    if (stream && !stream.closed) stream.enqueueUncounted(call);
    else if (stream?.context.workTracker.streams.has(this.#handle))
      // The stream was closed with work in it, and is destroyed only after that work.
      stream.context.run(() => call(this.#handle));
    else if (stream && hasWork(stream.context, this.#handle))
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

/** Whether work that was queued in a stream, which may be closed, is not done yet. */
function hasWork({ workTracker }: Context, stream: CUstream): boolean {
  const work = workTracker.fenceBehind(stream);
  const isDone = work.isDone();
  work.dispose();
  return !isDone;
}

/** The file descriptors of this process's pools: another process may send one back. */
const sharedPools = new Map<CUmemoryPool, number>();
