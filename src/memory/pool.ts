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
import { Resource, type ResourceInit, releaseOrWarn } from '../lifetime.ts';
import { type Stream, streamOption } from '../stream.ts';
import { assertInternal, checkBoolean, checkInteger, checkOptions } from '../validate.ts';
import { allocateWithRetry } from './allocate-with-retry.ts';
import {
  type AllocateOptions,
  DeviceBuffer,
  type MemoryResource,
  type StreamOrderedRelease,
} from './buffer.ts';
import type { PoolCloseOptions, PoolOptions } from './pool-attributes.ts';
import * as driver from './pool-attributes.ts';
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

/** A pool as the driver keeps its accounts: what it uses, holds and gives out again. */
abstract class PoolAttributes extends Resource {
  readonly #handle: CUmemoryPool;

  protected constructor(handle: CUmemoryPool, init: ResourceInit) {
    super('MemoryPool', init);
    this.#handle = handle;
  }

  /** The driver's handle. @throws ClosedError */
  get handle(): CUmemoryPool {
    this.assertOpen();
    return this.#handle;
  }

  /** The bytes that allocations use now, of other libraries too where the pool is borrowed. */
  get used(): number {
    return driver.readByteCount(this.handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  }

  /** The most that {@link used} was since the pool was made, or since {@link resetHighWater}. */
  get usedHigh(): number {
    return driver.readByteCount(this.handle, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
  }

  /** The bytes that the pool has taken from the device, in use or kept. */
  get reserved(): number {
    return driver.readByteCount(this.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  }

  /** The most that {@link reserved} was, as {@link usedHigh}. */
  get reservedHigh(): number {
    return driver.readByteCount(this.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
  }

  /** Lets {@link usedHigh} and {@link reservedHigh} begin again with what is used and reserved now. */
  resetHighWater(): void {
    driver.resetHighWater(this.handle, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    driver.resetHighWater(this.handle, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
  }

  /** How many unused bytes are kept; Infinity: all. See {@link PoolOptions.releaseThreshold}. */
  get releaseThreshold(): number {
    return driver.readThreshold(this.handle);
  }

  set releaseThreshold(byteLength: number) {
    checkThreshold(byteLength);
    driver.writeThreshold(this.handle, byteLength);
  }

  /** When freed memory is given out again; what is set need not name all. */
  get reuse(): driver.PoolReuse {
    const pool = this.handle;
    return {
      followEventDependencies: driver.readReuse(pool, 'followEventDependencies'),
      allowOpportunistic: driver.readReuse(pool, 'allowOpportunistic'),
      allowInternalDependencies: driver.readReuse(pool, 'allowInternalDependencies'),
    };
  }

  set reuse(wanted: Partial<driver.PoolReuse>) {
    const checked = checkReuse(wanted);
    for (const name of driver.reuseNames) {
      const value = checked[name];
      if (value !== undefined) driver.writeReuse(this.handle, name, value);
    }
  }

  /** Gives unused memory back to the device until no more than `minBytesToKeep` are reserved. */
  trim(minBytesToKeep = 0): void {
    checkInteger(minBytesToKeep, 'minBytesToKeep');
    check(
      cu.cuMemPoolTrimTo(this.handle, minBytesToKeep),
      'cuMemPoolTrimTo',
      () => `trimming a memory pool to ${minBytesToKeep} bytes`,
    );
  }
}

function checkThreshold(byteLength: unknown): void {
  if (byteLength !== Number.POSITIVE_INFINITY) checkInteger(byteLength, 'releaseThreshold');
}

function checkReuse(reuse: Partial<driver.PoolReuse> | undefined): Partial<driver.PoolReuse> {
  const checked = checkOptions(reuse, driver.reuseNames, 'reuse');
  for (const name of driver.reuseNames) checkBoolean(checked[name], name, true);
  return checked;
}

/**
 * A pool of device memory whose allocations and frees are ordered in streams: both only queue.
 *
 * A buffer may be used by work that is queued, after its allocation, in its stream, or in a stream
 * that waits for it. `buffer.close()` queues the free in the same stream (`buffer.close({ stream })`
 * in another one). Legacy IPC cannot share pool memory.
 *
 * @example
 * using pool = cuda.MemoryPool.create({ maxSize: 1 << 30 });
 * using stream = cuda.Stream.create();
 * using buffer = pool.allocate(4096, { stream });
 * buffer.fill(0, { stream });
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html
 */
export class MemoryPool extends PoolAttributes implements MemoryResource {
  readonly context: Context;
  readonly deviceAccessible = true;
  readonly hostAccessible = false;
  /** The most that it takes from the device, in bytes; Infinity where only the driver limits it. */
  readonly maxSize: number;
  readonly shareable: boolean;
  /** Whether it is the device's own: closing it forgets it. */
  readonly borrowed: boolean;
  /** Whether another process made it: see `openIpcPool` of cuffi/ipc. */
  readonly isMapped = false;
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
    super(handle, {
      owner: context.resources,
      release: properties.borrowed
        ? undefined
        : () => destroyPool(context, epoch, state, teardownOf(handle)),
    });
    this.context = context;
    this.maxSize = properties.maxSize;
    this.shareable = properties.shareable;
    this.borrowed = properties.borrowed;
    this.#state = state;
  }

  /**
   * Makes a pool.
   *
   * @throws NotSupportedError where the device has none, or none of that kind
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
    checkThreshold(releaseThreshold);
    const checkedReuse = checkReuse(reuse);
    const context = Context.resolve(place);
    const { device } = context;
    if (!MemoryPool.supported(device))
      throw new NotSupportedError(`${device} has no memory pools: use DeviceBuffer.allocate`);
    if (isShareable && !driver.canMakeShareable(device))
      throw new NotSupportedError(
        `${device} does not make memory pools that can be shared by file descriptor`,
      );
    const handle = driver.createPool(device, isShareable, maxSize ?? 0);
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

  /** The device's own pool, which other libraries use too; it is borrowed. */
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
   * Whether a device has pools; `{ shareable: true }`: whether it makes them for other processes,
   * for which the first time a small one is made and destroyed.
   */
  static supported(
    device: Device | number = 0,
    options?: { readonly shareable?: boolean },
  ): boolean {
    const { shareable } = checkOptions(options, ['shareable'], 'MemoryPool.supported');
    const isShareable = checkBoolean(shareable, 'shareable', false);
    const of = Device.resolve(device);
    return isShareable ? driver.canMakeShareable(of) : of.attribute('memoryPoolsSupported') !== 0;
  }

  /**
   * Memory from the pool, uninitialised; only queues.
   *
   * In a stream that is captured, it becomes memory of the graph, allocated anew by each launch and
   * freed where the buffer is closed, at the latest at the end of the capture: see {@link Graph}.
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
      throw new RangeError(`${byteLength} bytes are more than the pool's maxSize of ${maxSize}`);
    if (isCapturing()) return allocateInCapture(this, pool, byteLength, stream);
    const plainHandle = stream?.untrackedHandle;
    const status =
      plainHandle === undefined
        ? undefined
        : cu.cuMemAllocFromPoolAsync(OUT0, byteLength, pool, plainHandle);
    if (status !== CUresult.CUDA_SUCCESS) this.#allocateWithRetry(byteLength, stream, status);
    const address = readHandle<CUdeviceptr>(OUT0, (exact) =>
      new PoolAllocation(context, state, exact, byteLength, stream).release(),
    );
    return new DeviceBuffer({
      context,
      address,
      byteLength,
      origin: 'allocated',
      resource: this,
      owner: state.buffers,
      release: new PoolAllocation(context, state, address, byteLength, stream),
    });
  }

  /**
   * Leaves the address in OUT0.
   *
   * @param firstStatus how the driver answered already, if it was asked
   */
  #allocateWithRetry(
    byteLength: number,
    stream: Stream | undefined,
    firstStatus: CUresult | undefined,
  ): void {
    const { context, maxSize, handle: pool } = this;
    const call = (queue: CUstream): void =>
      allocateWithRetry(
        context,
        'cuMemAllocFromPoolAsync',
        byteLength,
        () => cu.cuMemAllocFromPoolAsync(OUT0, byteLength, pool, queue),
        {
          firstStatus,
          describeLimits: () =>
            `; the pool has ${this.used} in use${maxSize === Number.POSITIVE_INFINITY ? '' : ` of at most ${maxSize}`}`,
        },
      );
    if (stream) stream.enqueue(call);
    else context.run(() => call(0 as CUstream));
  }

  /**
   * Lets another device use the pool's memory, or no longer. The pool's own always may.
   *
   * @throws NotSupportedError where that device does not reach this one's memory
   */
  setAccess(device: Device | number, access: 'read-write' | 'none'): void {
    if (access !== 'read-write' && access !== 'none')
      throw new TypeError(`access must be 'read-write' or 'none', not ${String(access)}`);
    const pool = this.handle;
    const other = Device.resolve(device);
    const own = this.context.device;
    if (other === own)
      throw new RangeError(`the pool is on ${own} itself, whose access to it never changes`);
    const mayUse = access === 'read-write';
    if (mayUse && !other.canAccessPeer(own))
      throw new NotSupportedError(`${other} does not reach the memory of ${own}`);
    driver.writeAccess(pool, other, mayUse);
    if (mayUse) this.#state.devicesWithAccess.add(other);
    else this.#state.devicesWithAccess.delete(other);
  }

  /** What a device may do with the pool's memory. */
  access(device: Device | number): driver.PoolAccess {
    return driver.readAccess(this.handle, Device.resolve(device));
  }

  /**
   * Destroys the pool, as soon as no work uses its memory; a borrowed one is forgotten.
   *
   * @throws CuffiError while buffers of it are open, unless they are to be closed with it
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

  /** @internal How other processes open it. @throws IpcError unless it was made for that */
  share(): SharedPool {
    if (!this.shareable)
      throw new IpcError(
        `this memory pool is not for other processes: make it with MemoryPool.create({ shareable: true })`,
      );
    return sharePool(this.context, this.handle, this.#state);
  }

  override toString(): string {
    return `MemoryPool(of ${this.context.device}${this.borrowed ? ', borrowed' : ''}${this.closed ? ', closed' : ''})`;
  }
}

/** Memory of a graph: each launch allocates it where that was captured, and frees it again. */

/**
 * Allocates memory of the graph that is captured. It is free from where the buffer is closed, at the
 * latest from the end of the capture: nothing of it outlives a launch.
 *
 * @throws CuffiError for a stream that is not captured; NotSupportedError, CudaError
 */
function allocateInCapture(
  pool: MemoryPool,
  handle: CUmemoryPool,
  byteLength: number,
  stream: Stream | undefined,
): DeviceBuffer {
  if (pool.shareable)
    throw new NotSupportedError(
      'memory of a graph is of this process alone: allocate it from a pool that is not shareable',
    );
  const queue = capturedHandle(stream, 'allocating memory');
  check(
    cu.cuMemAllocFromPoolAsync(OUT0, byteLength, handle, queue),
    'cuMemAllocFromPoolAsync',
    () => `allocating ${byteLength} bytes of a graph`,
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
  });
  onCaptureEnd((origin) => {
    memory.freeAtCaptureEnd(origin);
    buffer.invalidate('it was memory of a graph, whose capture has ended');
  });
  return buffer;
}

/** One allocation of a graph, until it is freed in the same capture. */
class GraphAllocation implements StreamOrderedRelease {
  readonly #address: CUdeviceptr;
  #stream: CUstream;
  #isFreed = false;

  constructor(address: CUdeviceptr, stream: CUstream) {
    this.#address = address;
    this.#stream = stream;
  }

  /** Frees in another stream than that of the allocation. */
  setStream(stream: Stream): void {
    this.#stream = capturedHandle(stream, 'freeing memory of a graph');
  }

  /** Captures the free; the second time does nothing. */
  release(): void {
    if (this.#isFreed) return;
    check(cu.cuMemFreeAsync(this.#address, this.#stream), 'cuMemFreeAsync');
    this.#isFreed = true;
  }

  /** Frees behind all that was captured; where that failed the memory is gone with it. */
  freeAtCaptureEnd(origin: CUstream | undefined): void {
    if (origin === undefined) {
      this.#isFreed = true;
      return;
    }
    this.#stream = origin;
    this.release();
  }
}

/** The handle of a stream that is captured. @throws CuffiError for another */
function capturedHandle(stream: Stream | undefined, doing: string): CUstream {
  // A default stream never is, and asking for it wants a context.
  const handle = stream?.handle ?? CU_STREAM_PER_THREAD;
  if (handle > CU_STREAM_PER_THREAD && belongsToCapture(handle as CUstream))
    return handle as CUstream;
  throw new CuffiError(
    `${doing} while a graph is captured, in a stream that is not: name one that is, or do it before ` +
      'or after.',
  );
}
