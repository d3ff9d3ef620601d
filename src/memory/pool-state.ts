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
import { checkBoolean, checkOptions } from '../validate.ts';
import type { StreamOrderedRelease } from './buffer.ts';
import { addContextFd, closeContextFd } from './context-fds.ts';
import { orderAfterTransfers } from './host-copy.ts';
import { ensureKeepaliveAllocation } from './physical-memory.ts';
import type { PoolCloseOptions } from './pool-attributes.ts';
import * as driver from './pool-attributes.ts';
import { randomId } from './random-id.ts';

/** What the pool's finalizer and its buffers' know of it: never the pool itself. */
export interface PoolState {
  readonly buffers: Scope;
  /** The bytes of the open buffers. */
  byteLength: number;
  /** The other devices that were given access. */
  readonly devicesWithAccess: Set<Device>;
  /** How other processes open it, once it was shared or where it came from one. */
  shared: SharedPool | undefined;
}

/** A pool as other processes may open it. */
export interface SharedPool {
  /** 16 random bytes in hex: the pool's for life. */
  readonly id: string;
  /** Of the pool: sent beside the descriptor, and closed with the pool. */
  readonly fd: number;
  /** Called when the pool ends here, and nobody has memory of it any more. None may throw. */
  readonly onClose: Set<() => void>;
}

/** @param isBorrowed whether the pool is none of the context's resources, though its buffers are */
export const newPoolState = (context: Context, isBorrowed = false): PoolState => ({
  buffers: new Scope(context.resources, isBorrowed),
  byteLength: 0,
  devicesWithAccess: new Set(),
  shared: undefined,
});

/** The descriptors of this process's pools, which others may send back. */
const sharedPools = new Map<CUmemoryPool, number>();

/** Whether this process made a pool, and has shared it by the descriptor `fd`, or may have. */
export function isSharedPool(handle: CUmemoryPool, fd: number): boolean {
  const own = sharedPools.get(handle);
  return own !== undefined && isSameFile(own, fd) !== false;
}

/** The pool's descriptor, made once. */
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

/**
 * Checks the options of a pool's `close()`.
 *
 * @throws CuffiError while buffers of it are open, unless they are to be closed with it
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
        ? `1 buffer of this pool (${byteLength} bytes) is`
        : `${buffers.size} buffers of this pool (${byteLength} bytes) are`) +
        ' open: close what is open first, or close({ buffers: true })',
    );
}

/** What ends with a pool, each by a call of the driver. */
export interface PoolTeardown {
  /** Takes a device's access back. */
  revokeAccess(device: Device): void;
  destroy(): void;
}

/** The end of a pool that this process made. */
export const teardownOf = (handle: CUmemoryPool): PoolTeardown => ({
  revokeAccess: (device) => driver.writeAccess(handle, device, false),
  destroy() {
    check(cu.cuMemPoolDestroy(handle), 'cuMemPoolDestroy');
    sharedPools.delete(handle);
  },
});

/** Destroys a pool when the GPU is done with it; nothing after a reset, before which all were. */
export function destroyPool(
  context: Context,
  resets: number,
  state: PoolState,
  teardown: PoolTeardown,
): void {
  const { releases } = context;
  const { shared, buffers } = state;
  const destroy = (): void => {
    if (context.epoch !== resets) return;
    runAll([
      // A later pool may get the same handle, and with it the access that others had to this one.
      ...[...state.devicesWithAccess].map((device) => () => teardown.revokeAccess(device)),
      () => teardown.destroy(),
    ]);
  };
  runAll([
    () => {
      for (const notify of shared?.onClose ?? []) notify();
    },
    () => shared && closeContextFd(context, shared.fd),
    // None is open but after a leak: pool and buffers were collected together.
    () => buffers.closeAll('its pool was closed'),
    () => releases.enqueue(destroy, { mayBlock: false }),
  ]);
}

/** Memory that a pool gave out: whose books it is in, and in which stream it will be freed. */
export class PoolAllocation implements StreamOrderedRelease {
  readonly #context: Context;
  readonly #epoch: number;
  readonly #state: PoolState;
  readonly #address: CUdeviceptr;
  readonly #byteLength: number;
  #stream: Stream | undefined;
  #handle: CUstream;

  /** @param stream that of the allocation; undefined for the default one */
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

  /** Queues the free; nothing after a reset, before which all was freed. */
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

  // Apart, as closures would cost the rest an allocation at every call.
  #freeAfterCapture(): void {
    // Queued now, it would become a part of the graph.
    this.#context.releases.enqueue(() => this.#free(), { mayBlock: false });
  }

  #freeInQueue(): void {
    const call = (handle: CUstream): void => this.#call(handle);
    const stream = this.#stream;
    if (stream && !stream.closed) stream.enqueue(call);
    else if (stream?.context.workTracker.streams.has(this.#handle))
      // Closed with work in it, and not destroyed before that is done.
      stream.context.run(() => call(this.#handle));
    // Closed and idle, or the default one from the beginning.
    else this.#context.run(() => call(0 as CUstream));
  }

  #call(stream: CUstream): void {
    orderAfterTransfers(this.#context, stream);
    check(cu.cuMemFreeAsync(this.#address, stream), 'cuMemFreeAsync');
  }
}
