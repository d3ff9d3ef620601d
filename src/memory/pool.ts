import { OUT0, readHandle } from '../../ffi/arena.ts';
import {
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
  CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
  CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
  CU_MEMPOOL_ATTR_USED_MEM_HIGH,
  CU_STREAM_PER_THREAD,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUdeviceptr, CUmemoryPool, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import { Context } from '../context.ts';
import { Device } from '../device.ts';
import { CuffiError, IpcError, NotSupportedError } from '../errors.ts';
import { belongsToCapture, isCapturing, onCaptureEnd } from '../graph-capture.ts';
import { type Details, placeName } from '../inspect.ts';
import { Resource, releaseOrWarn } from '../lifetime.ts';
import { type Stream, streamOption } from '../stream.ts';
import {
  assertInternal,
  checkBoolean,
  checkInteger,
  checkOptions,
  formatBytes,
} from '../validate.ts';
import { isCaptured, isStreamBusy } from '../work-tracker.ts';
import { allocateWithRetry } from './allocate-with-retry.ts';
import {
  type AllocateOptions,
  type DeviceAccess,
  DeviceBuffer,
  type MemoryResource,
  type StreamOrderedRelease,
} from './buffer.ts';
import type { PoolCloseOptions, PoolOptions } from './pool-attributes.ts';
import * as attributes from './pool-attributes.ts';
import {
  checkPoolClose,
  destroyPool,
  newPoolState,
  PoolAllocation,
  type PoolState,
  type SharedPool,
  sharePool,
  teardownOf,
} from './pool-state.ts';

/**
 * A pool of device memory with stream-ordered allocations and frees. Both only queue work.
 *
 * Any stream may use a buffer through cuffi: at the first use in another stream than that of the
 * allocation, the stream waits for the allocation. `buffer.close()` frees the memory in the
 * allocation's stream, once the work in other streams that cuffi queued with it is done;
 * `buffer.close({ stream })` frees it in that stream. Legacy IPC cannot share pool memory.
 *
 * @example
 * using pool = cuda.MemoryPool.create({ maxSize: 1 << 30 });
 * using stream = cuda.Stream.create();
 * using buffer = pool.allocate(4096, { stream });
 * buffer.fill(0, { stream });
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html
 */
export class MemoryPool extends Resource implements MemoryResource, DeviceAccess {
  readonly context: Context;
  readonly deviceAccessible = true;
  readonly hostAccessible = false;
  /** The most bytes that it reserves from the device; Infinity if only the driver limits it. */
  readonly maxSize: number;
  readonly shareable: boolean;
  /** Whether it is the device's own pool, which closing does not destroy. */
  readonly borrowed: boolean;
  /** Whether another process created it: see `openIpcPool` of cuffi/ipc. */
  readonly isMapped = false;
  readonly #handle: CUmemoryPool;
  readonly #state: PoolState;

  private constructor(
    context: Context,
    handle: CUmemoryPool,
    properties: {
      readonly maxSize: number;
      readonly shareable: boolean;
      readonly borrowed: boolean;
    },
  ) {
    assertInternal(context, Context, 'MemoryPool', 'MemoryPool.create');
    const state = newPoolState(context, properties.borrowed);
    const { epoch } = context;
    super('MemoryPool', {
      owner: context.resources,
      release: properties.borrowed
        ? undefined
        : () => destroyPool(context, epoch, state, teardownOf(handle)),
    });
    this.#handle = handle;
    this.context = context;
    this.maxSize = properties.maxSize;
    this.shareable = properties.shareable;
    this.borrowed = properties.borrowed;
    this.#state = state;
  }

  /**
   * Creates a pool.
   *
   * @throws NotSupportedError if the device has no pools, or none of this kind
   */
  static create(options?: PoolOptions): MemoryPool {
    const {
      maxSize,
      releaseThreshold = Number.POSITIVE_INFINITY,
      shareable,
      reuse,
      ...place
    } = checkOptions(
      options,
      ['context', 'device', 'maxSize', 'releaseThreshold', 'shareable', 'reuse'],
      'MemoryPool.create',
    );
    if (maxSize !== undefined) checkInteger(maxSize, 'maxSize', 1);
    const isShareable = checkBoolean(shareable, 'shareable', false);
    attributes.checkThreshold(releaseThreshold);
    const checkedReuse = attributes.checkReuse(reuse);
    const context = Context.resolve(place);
    const { device } = context;
    if (!MemoryPool.supported(device))
      throw new NotSupportedError(`${device} has no memory pools: use DeviceBuffer.allocate`);
    if (isShareable && !attributes.canMakeShareable(device))
      throw new NotSupportedError(
        `${device} does not support memory pools that can be shared by file descriptor`,
      );
    const handle = attributes.createPool(device, isShareable, maxSize ?? 0);
    const pool = new MemoryPool(context, handle, {
      maxSize: maxSize ?? Number.POSITIVE_INFINITY,
      shareable: isShareable,
      borrowed: false,
    });
    try {
      pool.releaseThreshold = releaseThreshold;
      pool.reuse = checkedReuse;
    } catch (error) {
      releaseOrWarn(() => pool.close());
      throw error;
    }
    return pool;
  }

  /** The device's own pool, borrowed: other libraries use it too. */
  static default(device: Device | number = 0): MemoryPool {
    const context = Context.primary(device);
    const { device: of } = context;
    if (!MemoryPool.supported(of))
      throw new NotSupportedError(`${of} has no memory pools: use DeviceBuffer.allocate`);
    check(cu.cuDeviceGetDefaultMemPool(OUT0, of.handle), 'cuDeviceGetDefaultMemPool');
    return new MemoryPool(context, readHandle<CUmemoryPool>(OUT0), {
      maxSize: Number.POSITIVE_INFINITY,
      shareable: false,
      borrowed: true,
    });
  }

  /**
   * Whether a device supports pools, or with `{ shareable: true }`, pools that other processes can
   * open. The first such query creates and destroys a small pool.
   */
  static supported(
    device: Device | number = 0,
    options?: { readonly shareable?: boolean },
  ): boolean {
    const { shareable } = checkOptions(options, ['shareable'], 'MemoryPool.supported');
    const isShareable = checkBoolean(shareable, 'shareable', false);
    const of = Device.resolve(device);
    return isShareable
      ? attributes.canMakeShareable(of)
      : of.attribute('memoryPoolsSupported') !== 0;
  }

  /**
   * Allocates uninitialized memory from the pool. Only queues the work.
   *
   * In a captured stream, the memory belongs to the graph. Each launch allocates it anew, and frees
   * it where the buffer was closed, at the latest at the end of the capture: see {@link Graph}.
   *
   * @throws RangeError for more than {@link maxSize}, CudaError CUDA_ERROR_OUT_OF_MEMORY
   */
  allocate(byteLength: number, options?: AllocateOptions): DeviceBuffer {
    checkInteger(byteLength, 'byteLength', 1);
    const stream = streamOption(options, 'allocate');
    const pool = this.handle;
    const { context, maxSize } = this;
    const state = this.#state;
    if (byteLength > maxSize)
      throw new RangeError(
        `${formatBytes(byteLength)} are more than the pool's maxSize of ${formatBytes(maxSize)}`,
      );
    if (isCapturing()) return allocateInCapture(this, pool, byteLength, stream);
    const plainHandle = stream?.untrackedHandle;
    if (stream && plainHandle === undefined) assertNotCapturedElsewhere(stream);
    const status =
      plainHandle === undefined
        ? undefined
        : cu.cuMemAllocFromPoolAsync(OUT0, byteLength, pool, plainHandle);
    const isPending =
      plainHandle === undefined || status !== CUresult.CUDA_SUCCESS
        ? this.#allocateWithRetry(byteLength, stream, status)
        : isStreamBusy(plainHandle);
    const address = readHandle<CUdeviceptr>(OUT0, (exact) =>
      new PoolAllocation(context, state, exact, byteLength, stream).release(),
    );
    const release = new PoolAllocation(context, state, address, byteLength, stream);
    if (isPending) release.recordAllocation();
    return new DeviceBuffer({
      context,
      address,
      byteLength,
      origin: 'allocated',
      resource: this,
      owner: state.buffers,
      release,
      deviceAccess: this,
    });
  }

  /**
   * Allocates with one retry, and leaves the address in OUT0. Returns whether the stream has work, so
   * that the allocation may not be done.
   *
   * @param firstStatus the status of a first driver call, if one was made
   */
  #allocateWithRetry(
    byteLength: number,
    stream: Stream | undefined,
    firstStatus: CUresult | undefined,
  ): boolean {
    const { context, maxSize, handle: pool } = this;
    let isPending = false;
    const call = (queue: CUstream): void => {
      allocateWithRetry(
        context,
        'cuMemAllocFromPoolAsync',
        byteLength,
        () => cu.cuMemAllocFromPoolAsync(OUT0, byteLength, pool, queue),
        {
          firstStatus,
          describeLimits: () =>
            `; the pool has ${formatBytes(this.used)} in use${maxSize === Number.POSITIVE_INFINITY ? '' : ` of at most ${formatBytes(maxSize)}`}`,
        },
      );
      isPending = isStreamBusy(queue);
    };
    if (stream) stream.enqueueUncounted(call);
    else context.run(() => call(0 as CUstream));
    return isPending;
  }

  /** The driver's handle. @throws ClosedError */
  get handle(): CUmemoryPool {
    this.assertOpen();
    return this.#handle;
  }

  /** The bytes in use by allocations; for a borrowed pool, including those of other libraries. */
  get used(): number {
    return attributes.readByteCount(this.handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  }

  /**
   * The highest value of {@link used} since the pool was created, or since {@link resetHighWater}.
   */
  get usedHigh(): number {
    return attributes.readByteCount(this.handle, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
  }

  /** The bytes that the pool has reserved from the device, in use or free. */
  get reserved(): number {
    return attributes.readByteCount(this.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  }

  /** The highest value of {@link reserved}, like {@link usedHigh}. */
  get reservedHigh(): number {
    return attributes.readByteCount(this.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
  }

  /** Resets {@link usedHigh} and {@link reservedHigh} to the current values. */
  resetHighWater(): void {
    attributes.resetHighWater(this.handle, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    attributes.resetHighWater(this.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
  }

  /**
   * How many unused bytes the pool keeps; Infinity for all. See {@link
   * PoolOptions.releaseThreshold}.
   */
  get releaseThreshold(): number {
    return attributes.readThreshold(this.handle);
  }

  set releaseThreshold(byteLength: number) {
    attributes.checkThreshold(byteLength);
    attributes.writeThreshold(this.handle, byteLength);
  }

  /** When freed memory is reused. An assignment may name only some of the settings. */
  get reuse(): attributes.PoolReuse {
    const pool = this.handle;
    return {
      followEventDependencies: attributes.readReuse(pool, 'followEventDependencies'),
      allowOpportunistic: attributes.readReuse(pool, 'allowOpportunistic'),
      allowInternalDependencies: attributes.readReuse(pool, 'allowInternalDependencies'),
    };
  }

  set reuse(wanted: Partial<attributes.PoolReuse>) {
    const checked = attributes.checkReuse(wanted);
    for (const name of attributes.reuseNames) {
      const value = checked[name];
      if (value !== undefined) attributes.writeReuse(this.handle, name, value);
    }
  }

  /** Returns unused memory to the device until at most `minBytesToKeep` bytes are reserved. */
  trim(minBytesToKeep = 0): void {
    checkInteger(minBytesToKeep, 'minBytesToKeep');
    check(
      cu.cuMemPoolTrimTo(this.handle, minBytesToKeep),
      'cuMemPoolTrimTo',
      () => `trimming a memory pool to ${formatBytes(minBytesToKeep)}`,
    );
  }

  /**
   * Grants another device access to the pool's memory, or revokes it. The pool's own device always
   * has access.
   *
   * @throws NotSupportedError if that device cannot access this device's memory
   */
  setAccess(device: Device | number, access: 'read-write' | 'none'): void {
    if (access !== 'read-write' && access !== 'none')
      throw new TypeError(`access must be 'read-write' or 'none', not ${String(access)}`);
    const pool = this.handle;
    const other = Device.resolve(device);
    const own = this.context.device;
    if (other === own)
      throw new RangeError(`the pool is on ${own} itself, whose access cannot be changed`);
    const isAllowed = access === 'read-write';
    if (isAllowed && !other.canAccessPeer(own))
      throw new NotSupportedError(`${other} cannot access the memory of ${own}`);
    attributes.writeAccess(pool, other, isAllowed);
    if (isAllowed) this.#state.devicesWithAccess.add(other);
    else this.#state.devicesWithAccess.delete(other);
  }

  /** @internal */
  get accessRemedy(): string {
    return 'setAccess of its pool';
  }

  /** A device's access to the pool's memory. */
  access(device: Device | number): attributes.PoolAccess {
    return attributes.readAccess(this.handle, Device.resolve(device));
  }

  /**
   * Destroys the pool as soon as no work uses its memory. A borrowed pool is not destroyed.
   *
   * @throws CuffiError while buffers of the pool are open, unless `options` closes them too
   */
  override close(options?: PoolCloseOptions): void {
    checkPoolClose(this.#state, options, this.closed);
    if (this.closed) return;
    try {
      this.#state.buffers.closeAll('its pool was closed');
    } finally {
      super.close();
    }
  }

  /** @internal Exports the pool to other processes. @throws IpcError unless it is shareable */
  share(): SharedPool {
    if (!this.shareable)
      throw new IpcError(
        `this memory pool is not shareable: create it with MemoryPool.create({ shareable: true })`,
      );
    return sharePool(this.context, this.handle, this.#state);
  }

  /** @internal */
  protected override describe(): Details {
    return [placeName(this.context), this.shareable && 'shareable', this.borrowed && 'borrowed'];
  }
}

// ---- How memory is allocated in a capture ----

/**
 * Allocates memory of the graph that is being captured. The graph frees it where the buffer was
 * closed, at the latest at the end of the capture, so no memory outlives a launch.
 *
 * @throws CuffiError if the stream is not being captured; NotSupportedError, CudaError
 */
function allocateInCapture(
  pool: MemoryPool,
  handle: CUmemoryPool,
  byteLength: number,
  stream: Stream | undefined,
): DeviceBuffer {
  if (pool.shareable)
    throw new NotSupportedError(
      'memory of a graph cannot be shared: allocate it from a pool that is not shareable',
    );
  const queue = capturedHandle(stream, 'allocating memory');
  check(
    cu.cuMemAllocFromPoolAsync(OUT0, byteLength, handle, queue),
    'cuMemAllocFromPoolAsync',
    () => `allocating ${formatBytes(byteLength)} of a graph`,
  );
  const address = readHandle<CUdeviceptr>(OUT0, (exact) => cu.cuMemFreeAsync(exact, queue));
  const memory = new GraphAllocation(address, queue);
  const buffer = new DeviceBuffer({
    context: pool.context,
    address,
    byteLength,
    origin: 'allocated',
    resource: pool,
    release: memory,
    deviceAccess: pool,
  });
  onCaptureEnd((origin) => {
    memory.freeAtCaptureEnd(origin);
    buffer.invalidate('it was memory of a graph, whose capture has ended');
  });
  return buffer;
}

/** An allocation in a graph, until the same capture frees it. */
class GraphAllocation implements StreamOrderedRelease {
  readonly #address: CUdeviceptr;
  #stream: CUstream;
  #isFreed = false;

  constructor(address: CUdeviceptr, stream: CUstream) {
    this.#address = address;
    this.#stream = stream;
  }

  /** Selects the stream to free in, instead of the allocation's stream. */
  setStream(stream: Stream): void {
    this.#stream = capturedHandle(stream, 'freeing memory of a graph');
  }

  /** Captures the free. A second call does nothing. */
  release(): void {
    if (this.#isFreed) return;
    check(cu.cuMemFreeAsync(this.#address, this.#stream), 'cuMemFreeAsync');
    this.#isFreed = true;
  }

  /** Frees after all captured work. If the capture failed, the memory is gone with it. */
  freeAtCaptureEnd(origin: CUstream | undefined): void {
    if (origin === undefined) {
      this.#isFreed = true;
      return;
    }
    this.#stream = origin;
    this.release();
  }
}

/**
 * Checks that no other library captures a borrowed stream: the memory would belong to its graph, and
 * asking whether the allocation is done would end the capture.
 *
 * @throws CuffiError
 */
function assertNotCapturedElsewhere({ queryHandle: handle }: Stream): void {
  if (handle > CU_STREAM_PER_THREAD && isCaptured(handle))
    throw new CuffiError(
      'another library captures this stream, and its graph would own the memory: allocate before the ' +
        'capture, or capture by Graph.capture',
    );
}

/** The handle of a stream that is being captured. @throws CuffiError for any other stream */
function capturedHandle(stream: Stream | undefined, operation: string): CUstream {
  // A default stream is never captured, and querying it would need a context.
  const handle = stream?.queryHandle ?? CU_STREAM_PER_THREAD;
  if (handle > CU_STREAM_PER_THREAD && belongsToCapture(handle)) return handle;
  throw new CuffiError(
    `${operation} while a graph is captured needs a captured stream: pass one, or do it before or ` +
      'after the capture',
  );
}
