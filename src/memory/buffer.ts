import { inspect } from 'node:util';
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { CU_STREAM_LEGACY, CU_STREAM_PER_THREAD } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { check } from '../check.ts';
import { Context, type ContextMemory, type PlaceOptions } from '../context.ts';
import { refuseItemAccess } from '../conversions.ts';
import type { WaitOptions } from '../deadline.ts';
import { Device } from '../device.ts';
import { CuffiError, NotSupportedError } from '../errors.ts';
import { addCapturedMemory, isCapturing } from '../graph-capture.ts';
import type { Details } from '../inspect.ts';
import { describeObject, placeName } from '../inspect.ts';
import { isClosed, Resource, runAll, type Scope, stateKey } from '../lifetime.ts';
import { type Stream, type StreamOption, streamOf } from '../stream.ts';
import {
  assertInternal,
  checkBoolean,
  checkInstance,
  checkInteger,
  checkOptions,
  formatBytes,
  formatValue,
  type HostMemory,
} from '../validate.ts';
import { allocateWithRetry } from './allocate-with-retry.ts';
import { copyBuffer, fillBuffer } from './buffer-copy.ts';
import { roundUp, splitOffsetsWithin } from './chunks.ts';
import type { HostAllocation, HostMemoryKind } from './host-allocation.ts';
import { copyHost, copyHostSync } from './host-copy.ts';
import { freeNonBlocking } from './internal-stream.ts';
import type { LockFlags, PageLock } from './page-lock.ts';
import { callUseOrders, type MemoryUses, noteAddressRead, type UseOrder } from './use-order.ts';

/** Options of awaited copies. */
export interface CopyOptions extends StreamOption, WaitOptions {}

/** Options of {@link DeviceBuffer.close}. */
export interface BufferCloseOptions extends StreamOption {
  /**
   * `'refuse'`: throws and leaves the buffer open if another process uses it through a connection.
   */
  readonly leases?: 'refuse';
}

/** Options of {@link DeviceBuffer.fill}. */
export interface FillOptions extends StreamOption {
  /** The width of `value` in bytes: 1, 2 or 4. Default 1. */
  readonly elementByteLength?: 1 | 2 | 4;
}

/** Options of {@link DeviceBuffer.allocate}. */
export interface BufferOptions extends PlaceOptions, AllocateOptions {
  /** Where the memory comes from. Default: plain device memory. */
  readonly memory?: MemoryResource;
}

/** Options of {@link DeviceBuffer.fromPointer}. */
export interface PointerOptions extends PlaceOptions {
  /**
   * An object that must stay alive while the buffer is used. It is never read, nor asked whether it
   * is closed.
   */
  readonly owner?: unknown;
}

/** Where a buffer's memory comes from. */
export type BufferOrigin = 'allocated' | 'borrowed' | 'imported';

/** How memory may be accessed. */
export type Access = 'read-write' | 'read';

/** Frees memory in the order of a stream. */
export interface StreamOrderedRelease {
  /** Selects the stream to free in, instead of the allocation's stream. */
  setStream(stream: Stream): void;
  /** The order of work that uses the memory. */
  readonly orderUse?: UseOrder;
  /** Notes which streams use the memory. */
  readonly uses?: MemoryUses | undefined;
  release(): void;
}

/** Access to memory that each device is given separately: that of pools, and virtual memory. */
export interface DeviceAccess {
  /** What a device may do with the memory. */
  access(device: Device): Access | 'none';
  /** Gives another device access. Undefined if only the owner of the memory can. */
  allowAccess?(device: Device): void;
  /** @internal How a user gives a device access, for error messages. */
  readonly accessRemedy: string;
}

/** @internal The constructor argument of {@link DeviceBuffer}. */
export interface BufferInit {
  readonly context: Context;
  readonly address: CUdeviceptr;
  readonly byteLength: number;
  readonly origin: BufferOrigin;
  readonly resource?: MemoryResource | undefined;
  readonly release?: (() => void) | StreamOrderedRelease | undefined;
  /** The scope that closes it. Default: the context's. */
  readonly owner?: Scope | undefined;
  /** The buffer that it is a view of; never a view itself. */
  readonly root?: DeviceBuffer | undefined;
  /**
   * What its memory belongs to, kept alive. If that is a resource, the buffer is closed when the
   * resource is.
   */
  readonly keepalive?: unknown;
  /** Addresses that no single driver call may cross. */
  readonly mappingBoundaries?: (() => readonly number[]) | undefined;
  /** Whether the process that owns the memory has exited. */
  readonly isOwnerGone?: (() => boolean) | undefined;
  /** Default: `'read-write'`. */
  readonly access?: Access | undefined;
  /** Default: the devices that have peer access to the context. */
  readonly deviceAccess?: DeviceAccess | undefined;
}

/** Options of an allocation. */
export interface AllocateOptions {
  /**
   * The stream that orders the allocation, if the resource is stream-ordered. Work queued there
   * afterwards may use the memory. Other streams wait for the allocation at their first use of memory
   * of a pool. Default: the legacy default stream.
   */
  readonly stream?: Stream;
}

/**
 * Allocates and frees memory: plain device memory, a pool, mapped or managed memory. A buffer knows
 * its resource, and `close()` returns the memory to it.
 */
export interface MemoryResource {
  readonly context: Context;
  /** Whether kernels and device copies can access it. */
  readonly deviceAccessible: boolean;
  /** Whether the CPU can access it, as an ArrayBuffer. */
  readonly hostAccessible: boolean;
  /** @param byteLength at least 1 */
  allocate(byteLength: number, options?: AllocateOptions): DeviceBuffer;
}

/** Options of {@link DeviceMemory.create}. */
export interface DeviceMemoryOptions extends PlaceOptions {
  /**
   * Whether each allocation gets its own blocks, so that sharing it exposes no other memory. Sizes
   * are rounded up to 2 MiB. Default false.
   */
  readonly private?: boolean;
}

/** How a device gets access to memory of contexts. */
export const PEER_ACCESS_REMEDY = 'context.enablePeerAccess(other)';

/**
 * A range of device memory.
 *
 * The buffer owns its memory if it allocated it. `close()` frees the memory as soon as no work can
 * use it, and never waits. A `subarray` is a view of the same memory and keeps it alive.
 *
 * @example
 * using buffer = cuda.DeviceBuffer.allocate(1024);
 * await buffer.copyFrom(new Uint8Array(1024).fill(7));
 * const bytes = await buffer.copyToHost();
 */
export class DeviceBuffer extends Resource {
  readonly context: Context;
  readonly byteLength: number;
  /** Whether cuffi, another library or another process allocated it. */
  readonly origin: BufferOrigin;
  /** The resource that allocated the memory; undefined if cuffi did not allocate it. */
  readonly resource: MemoryResource | undefined;
  /**
   * Whether it may be written to. cuffi's copies and fills respect it; the driver enforces it for
   * virtual memory of another process.
   */
  readonly access: Access;
  readonly #address: CUdeviceptr;
  readonly #release: BufferInit['release'];
  /** The buffer that this one is a view of. */
  readonly #root: DeviceBuffer | undefined;
  readonly #keepalive: unknown;
  readonly #mappingBoundaries: (() => readonly number[]) | undefined;
  readonly #isOwnerGone: (() => boolean) | undefined;
  readonly #deviceAccess: DeviceAccess | undefined;

  /** @internal */
  constructor(init: BufferInit) {
    assertInternal(init, Object, 'DeviceBuffer', 'DeviceBuffer.allocate');
    super('DeviceBuffer', { owner: init.owner ?? init.context.resources, release: init.release });
    this.context = init.context;
    this.byteLength = init.byteLength;
    this.origin = init.origin;
    this.resource = init.resource;
    this.access = init.access ?? 'read-write';
    this.#address = init.address;
    this.#release = init.release;
    this.#root = init.root;
    this.#keepalive = init.keepalive;
    this.#mappingBoundaries = init.mappingBoundaries;
    this.#isOwnerGone = init.isOwnerGone;
    this.#deviceAccess = init.deviceAccess;
  }

  /**
   * Allocates uninitialized device memory (cuMemAlloc), the kind that legacy IPC can share. If a
   * memory manager is set, the manager allocates it.
   *
   * @param byteLength at least 1
   * @throws CudaError CUDA_ERROR_OUT_OF_MEMORY
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
   */
  static allocate(byteLength: number, options?: BufferOptions): DeviceBuffer {
    const { memory, stream, ...place } = checkOptions(
      options,
      ['context', 'device', 'memory', 'stream'],
      'DeviceBuffer.allocate',
    );
    checkInteger(byteLength, 'byteLength', 1);
    const givenResource = memory === undefined ? undefined : checkMemoryResource(memory);
    if (givenResource && (place.context || place.device !== undefined))
      throw new TypeError('give either a memory resource or a place, not both');
    const checkedStream = streamOf(stream);
    const resource = givenResource ?? defaultResource(Context.resolve(place));
    const buffer = resource.allocate(byteLength, checkedStream ? { stream: checkedStream } : {});
    // A user's own resource may return anything.
    if (givenResource && checkInstance(buffer, DeviceBuffer, 'what memory.allocate returns').closed)
      throw new TypeError('memory.allocate must return an open buffer, not a closed one');
    if (buffer.byteLength < byteLength)
      throw new RangeError(
        `memory.allocate must return at least ${formatBytes(byteLength)}, not ${buffer.byteLength}`,
      );
    return buffer;
  }

  /** Wraps memory that someone else owns. Closing the buffer frees nothing. */
  static fromPointer(address: number, byteLength: number, options?: PointerOptions): DeviceBuffer {
    checkInteger(address, 'address', 1);
    checkInteger(byteLength, 'byteLength', 0, Number.MAX_SAFE_INTEGER - address);
    const { owner, ...place } = checkOptions(
      options,
      ['context', 'device', 'owner'],
      'DeviceBuffer.fromPointer',
    );
    return new DeviceBuffer({
      context: Context.resolve(place),
      address: address as CUdeviceptr,
      byteLength,
      origin: 'borrowed',
      keepalive: keepaliveFor(owner),
    });
  }

  override get closed(): boolean {
    // Not super.closed: a launch checks every buffer, and the extra call is measurable.
    if (isClosed(this[stateKey])) return true;
    const container = this.#root ?? this.#keepalive;
    return container !== undefined && container instanceof Resource && container.closed;
  }

  /** @internal */
  protected override get closedWith(): Resource | undefined {
    const container = this.#root ?? this.#keepalive;
    return container instanceof Resource ? container : undefined;
  }

  /**
   * Frees the memory when the GPU is done with it. Never waits. A second call does nothing.
   *
   * Pool memory is freed in stream order: in the allocation's stream, or behind the work of other
   * streams that cuffi queued with it. `options.stream` names the stream instead. Work already queued
   * there may still use the memory; work in other streams must be done, or that stream must wait for
   * it. Other memory is freed once the context is idle. Plain device
   * memory is also freed under memory pressure and by `context.flush()`, once the work queued
   * before `close()` is done. cuffi knows the work that was queued through it, and earlier work in
   * the same stream, even a borrowed one. Any other work must be done before `close()`.
   *
   * If other processes use the memory through a connection, the buffer is closed here at once. The
   * memory is freed when they have closed it or exited: see `leases` of cuffi/ipc.
   *
   * @throws CuffiError with `{ leases: 'refuse' }` if another process uses it; it then stays open
   */
  override close(options?: BufferCloseOptions): void {
    if (options !== undefined) this.#applyCloseOptions(options);
    super.close();
  }

  #applyCloseOptions(options: BufferCloseOptions): void {
    const { stream, leases } = checkOptions(options, ['stream', 'leases'], 'close');
    if (leases !== undefined && leases !== 'refuse')
      throw new TypeError(`leases must be 'refuse', not ${formatValue(leases)}`);
    // Other processes lease the virtual memory itself, not this view of it.
    const { keepaliveNames } = this.#keepalive instanceof Resource ? this.#keepalive : this;
    if (leases === 'refuse' && !this.closed && keepaliveNames.length > 0)
      throw new CuffiError(
        `this ${this.byteLength}-byte buffer is in use by ${keepaliveNames.join(', ')}: it stays open`,
      );
    const releaseStream = streamOf(stream);
    if (!releaseStream || this.closed) return;
    releaseStream.assertOpen();
    if (typeof this.#release === 'object') this.#release.setStream(releaseStream);
  }

  /** The device address of the first byte. @throws ClosedError */
  get address(): CUdeviceptr {
    noteAddressRead(this.#memoryOwner, this.uses);
    return this.readableAddress;
  }

  /** @internal Like {@link address}, for calls that state their stream by {@link orderUse}. */
  get readableAddress(): CUdeviceptr {
    if (this.closed) throw this.closedError();
    return this.#address;
  }

  /** @internal Like {@link readableAddress}, for writing. @throws TypeError for a read-only buffer */
  get writableAddress(): CUdeviceptr {
    if (this.access !== 'read-write')
      throw new TypeError('this buffer is read-only: it was shared, or opened, for reading');
    return this.readableAddress;
  }

  /** @internal Which streams have used the memory; undefined unless its owner is another process. */
  get uses(): MemoryUses | undefined {
    const release = (this.#root ?? this).#release;
    return typeof release === 'object' ? release.uses : undefined;
  }

  /**
   * Whether the process that owns the memory has exited. The memory stays usable here. No other
   * process can open it any longer, unless it was shared by file descriptor.
   */
  get ownerGone(): boolean {
    return (this.#root ?? this).#isOwnerGone?.() ?? false;
  }

  /** Whether it is another process's memory, mapped here. */
  get isMapped(): boolean {
    return this.origin === 'imported';
  }

  /**
   * @internal Call it before work in a stream uses the memory. The stream then waits for a
   * stream-ordered allocation, and for the work of processes that have returned the memory. Undefined
   * for the legacy default stream.
   */
  orderUse(stream: Stream | undefined): void {
    const root = this.#root ?? this;
    if (isCapturing()) {
      const handle = stream?.queryHandle ?? CU_STREAM_LEGACY;
      // Work in a default stream is refused.
      if (handle <= CU_STREAM_PER_THREAD || addCapturedMemory(handle, root)) return;
    }
    const release = root.#release;
    if (typeof release === 'object') {
      release.uses?.add(stream);
      release.orderUse?.(stream);
    }
    callUseOrders(this.#memoryOwner, stream);
  }

  /** What other processes lease: the virtual memory that it is a part of, or the buffer itself. */
  get #memoryOwner(): object {
    const root = this.#root ?? this;
    return root.#keepalive instanceof Resource ? root.#keepalive : root;
  }

  /** @internal What its memory belongs to, if that is not a buffer: for example virtual memory. */
  get keepalive(): unknown {
    return (this.#root ?? this).#keepalive;
  }

  /** @internal The offsets at which driver calls must be split, ascending. */
  get splitOffsets(): readonly number[] {
    return this.#mappingBoundaries
      ? splitOffsetsWithin(this.#mappingBoundaries(), this.#address, this.byteLength)
      : [];
  }

  /** @internal The buffer that this one is a view of, or itself. */
  get root(): DeviceBuffer {
    return this.#root ?? this;
  }

  /**
   * Lets another device access the virtual memory that this buffer lies in, of this process or another
   * one, over the link between the devices. Its kernels and copies then use the memory where it is.
   * All buffers of the same virtual memory have the access, until the last of them is closed.
   *
   * @throws NotSupportedError if that device cannot access this one's memory, or for other memory: the
   * message says how to give access to that; RangeError for the device of the memory; ClosedError,
   * CudaError
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html
   */
  allowAccess(device: Device | number): void {
    this.assertOpen();
    const other = Device.resolve(device);
    const { deviceAccess } = this;
    if (!deviceAccess?.allowAccess)
      throw new NotSupportedError(
        `allowAccess is for virtual memory, and this buffer is not part of it: use ${this.accessRemedy}`,
      );
    deviceAccess.allowAccess(other);
  }

  /** @internal Whether kernels of a context can access the memory: it is theirs, or they were given access. */
  isAccessibleFrom(context: Context): boolean {
    const { device } = context;
    if (device === this.context.device) return true;
    const { deviceAccess } = this;
    return deviceAccess
      ? deviceAccess.access(device) !== 'none'
      : context.peerAccess.has(this.context);
  }

  /** @internal How a user gives another device access, for error messages. */
  get accessRemedy(): string {
    return this.deviceAccess?.accessRemedy ?? PEER_ACCESS_REMEDY;
  }

  /** @internal Access that each device is given separately; undefined if peer access decides. */
  get deviceAccess(): DeviceAccess | undefined {
    const root = this.#root ?? this;
    if (root.#deviceAccess) return root.#deviceAccess;
    const keepalive = root.#keepalive;
    // Borrowed memory of another buffer is what that buffer is.
    const owner = keepalive instanceof OwnerReference ? keepalive.owner : keepalive;
    return owner instanceof DeviceBuffer ? owner.deviceAccess : undefined;
  }

  /**
   * A read-only view of the same memory. cuffi's copies and fills refuse to write to it; a kernel
   * that receives it still can. Only a view of virtual memory can be sent to another process, which
   * maps it without write access.
   */
  readOnly(): DeviceBuffer {
    return this.view(0, this.byteLength, 'read');
  }

  /**
   * A view of the bytes from `begin` up to `end`, in the same memory. It is closed with the buffer
   * that owns the memory.
   *
   * @throws RangeError beyond the buffer
   */
  subarray(begin = 0, end: number = this.byteLength): DeviceBuffer {
    this.assertOpen();
    checkInteger(begin, 'begin', 0, this.byteLength);
    checkInteger(end, 'end', begin, this.byteLength);
    return this.view(begin, end, this.access);
  }

  /**
   * @internal A view of the bytes from `begin` up to `end`, with an optional release of its own.
   */
  view(
    begin: number,
    end: number,
    access: Access,
    options?: Pick<BufferInit, 'release'>,
  ): DeviceBuffer {
    return new DeviceBuffer({
      context: this.context,
      address: (this.readableAddress + begin) as CUdeviceptr,
      byteLength: end - begin,
      origin: this.origin,
      resource: this.resource,
      root: this.root,
      mappingBoundaries: this.#mappingBoundaries,
      access,
      ...options,
    });
  }

  /** @internal Moves the memory to a new buffer, and closes this one. @throws CuffiError */
  moveToNewBuffer(): DeviceBuffer {
    const { owner } = this.transferOwnership('its memory was moved to another buffer');
    return new DeviceBuffer({
      context: this.context,
      address: this.#address,
      byteLength: this.byteLength,
      origin: this.origin,
      resource: this.resource,
      release: this.#release,
      owner,
      keepalive: this.#keepalive,
      mappingBoundaries: this.#mappingBoundaries,
      isOwnerGone: this.#isOwnerGone,
      access: this.access,
      deviceAccess: this.#deviceAccess,
    });
  }

  /** Sets every element to `value`. Only queues the work. */
  fill(value: number, options?: FillOptions): void {
    fillBuffer(this, value, options);
  }

  /**
   * Copies this buffer to the start of another one. Only queues the work. The target may be on
   * another device; peer access is enabled if the devices support it.
   *
   * @throws RangeError if `target` is smaller
   */
  copyTo(target: DeviceBuffer, options?: StreamOption): void {
    copyBuffer(this, checkInstance(target, DeviceBuffer, 'target'), options);
  }

  /**
   * Copies host memory to the start of this buffer, after the work queued in the stream. Does not
   * block the event loop. Until the promise settles, use neither the buffer nor `source`: work
   * queued meanwhile is not ordered with the copy. If `source` is transferred to another thread
   * meanwhile, the promise rejects. Keep the transferred memory until then: freeing memory during a
   * copy can crash the process.
   *
   * @throws RangeError if `source` is longer than the buffer
   */
  copyFrom(source: HostMemory, options?: CopyOptions): Promise<void> {
    return copyHost(this, 'to device', source, options);
  }

  /** Like {@link copyFrom}, but blocks until the copy is done. */
  copyFromSync(source: HostMemory, options?: StreamOption): void {
    copyHostSync(this, 'to device', source, options);
  }

  /**
   * Copies to host memory, after the work queued in the stream. Fills `into` from the start of this
   * buffer, or copies the whole buffer to a new Uint8Array. Until the promise settles, use neither,
   * as with {@link copyFrom}.
   *
   * @throws RangeError if `into` is longer than the buffer
   */
  copyToHost(into?: undefined, options?: CopyOptions): Promise<Uint8Array<ArrayBuffer>>;
  copyToHost<T extends HostMemory>(into: T, options?: CopyOptions): Promise<T>;
  async copyToHost(into?: HostMemory, options?: CopyOptions): Promise<HostMemory> {
    const target = into === undefined ? new Uint8Array(this.byteLength) : into;
    await copyHost(this, 'to host', target, options);
    return target;
  }

  /** Like {@link copyToHost}, but blocks until the copy is done. */
  copyToHostSync(into?: undefined, options?: StreamOption): Uint8Array<ArrayBuffer>;
  copyToHostSync<T extends HostMemory>(into: T, options?: StreamOption): T;
  copyToHostSync(into?: HostMemory, options?: StreamOption): HostMemory {
    const target = into === undefined ? new Uint8Array(this.byteLength) : into;
    copyHostSync(this, 'to host', target, options);
    return target;
  }

  /** @internal */
  protected override describe(): Details {
    return [`${this.byteLength} bytes`, this.origin];
  }

  /** @internal */
  protected override operandAdvice(): string {
    return 'its address is `buffer.address`, and a part of it `buffer.subarray(begin, end)`';
  }
}

refuseItemAccess(DeviceBuffer.prototype, {
  name: 'DeviceBuffer',
  place: 'its bytes are in memory of the device',
  read: () => 'them with `await buffer.copyToHost()`',
  write: () => 'them with `await buffer.copyFrom(bytes)`, or `buffer.fill(value)`',
  iterate: '`await buffer.copyToHost()`',
});

/**
 * Plain device memory (cuMemAlloc), the kind that legacy IPC can share. `DeviceBuffer.allocate`
 * uses it by default.
 *
 * @example
 * const memory = cuda.DeviceMemory.create({ private: true });
 * using buffer = memory.allocate(1000); // alone in its 2 MiB
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export class DeviceMemory implements MemoryResource {
  readonly context: Context;
  readonly private: boolean;
  readonly deviceAccessible = true;
  readonly hostAccessible = false;

  private constructor(context: Context, isPrivate: boolean) {
    assertInternal(context, Context, 'DeviceMemory', 'DeviceMemory.create');
    this.context = context;
    this.private = isPrivate;
  }

  [inspect.custom](): string {
    return describeObject('DeviceMemory', () => [
      placeName(this.context),
      this.private && 'private',
    ]);
  }

  static create(options?: DeviceMemoryOptions): DeviceMemory {
    const { private: isPrivate, ...place } = checkOptions(
      options,
      ['context', 'device', 'private'],
      'DeviceMemory.create',
    );
    return new DeviceMemory(Context.resolve(place), checkBoolean(isPrivate, 'private', false));
  }

  /** @throws CudaError CUDA_ERROR_OUT_OF_MEMORY */
  allocate(byteLength: number, options?: AllocateOptions): DeviceBuffer {
    checkInteger(byteLength, 'byteLength', 1);
    checkOptions(options, ['stream'], 'allocate');
    const { context } = this;
    const allocatedByteLength = this.private ? roundUp(byteLength, BLOCK_BYTE_LENGTH) : byteLength;
    const address = context.run(() => {
      allocateWithRetry(context, 'cuMemAlloc_v2', allocatedByteLength, () =>
        cu.cuMemAlloc_v2(OUT0, allocatedByteLength),
      );
      return readHandle<CUdeviceptr>(OUT0, cu.cuMemFree_v2);
    });
    return makeOwnedBuffer(this, address, byteLength, allocatedByteLength);
  }
}

// ---- How the memory of a buffer is checked, allocated and kept alive ----

/** The unit in which the driver maps and shares memory. */
const BLOCK_BYTE_LENGTH = 2 << 20;

/** Makes a buffer that owns plain device memory and frees it when closed. */
export function makeOwnedBuffer(
  resource: DeviceMemory,
  address: CUdeviceptr,
  byteLength: number,
  allocatedByteLength: number = byteLength,
): DeviceBuffer {
  const { context } = resource;
  const { releases, epoch } = context;
  return new DeviceBuffer({
    context,
    address,
    byteLength,
    origin: 'allocated',
    resource,
    release: () =>
      releases.enqueue(
        () => {
          if (context.epoch === epoch) check(cu.cuMemFree_v2(address), 'cuMemFree_v2');
        },
        {
          byteLength: allocatedByteLength,
          nonBlockingRelease: () => {
            if (context.epoch === epoch) freeNonBlocking(context, address);
          },
        },
      ),
  });
}

const defaultResource = (context: Context): MemoryResource =>
  memoryManagerOf(context) ?? DeviceMemory.create({ context });

/** @throws TypeError unless `value` is a memory resource */
export function checkMemoryResource(value: unknown): MemoryResource {
  const { context, allocate } = (value ?? {}) as Partial<Record<keyof MemoryResource, unknown>>;
  if (!(context instanceof Context) || typeof allocate !== 'function')
    throw new TypeError(
      'memory must be a memory resource, such as DeviceMemory, MemoryPool, ManagedMemory or ' +
        `MappedMemory, not ${formatValue(value)}`,
    );
  return value as MemoryResource;
}

/**
 * @internal The default resource of a context that has a memory manager. manager/ implements it.
 */
export interface ManagerResource extends ContextMemory, MemoryResource {
  allocateHost(byteLength: number, kind: HostMemoryKind): HostAllocation;
  /** Page-locks `memory`, or takes over its lock if that is being released. */
  lockHost(memory: Uint8Array, flags: LockFlags): PageLock;
}

/** @internal The memory manager of a context, if one was set. */
export const memoryManagerOf = (context: Context): ManagerResource | undefined =>
  // Only manager/ sets a context's memory.
  context.memory as ManagerResource | undefined;

/**
 * Wraps the owner that a caller named for a borrowed buffer. The buffer keeps the owner alive, but
 * closing an owner that is a resource does not close the buffer.
 */
export const keepaliveFor = (owner: unknown): unknown =>
  owner === undefined ? undefined : new OwnerReference(owner);

class OwnerReference {
  readonly owner: unknown;

  constructor(owner: unknown) {
    this.owner = owner;
  }
}

/**
 * @internal Prevents memory, and the virtual memory or pool that it belongs to, from being freed.
 * Returns a function that ends this.
 *
 * @param name who keeps it, for the error of `close({ leases: 'refuse' })`
 * @param onClose called when the memory or the pool is closed
 * @throws ClosedError
 */
export function keepMemoryAlive(
  { root }: DeviceBuffer,
  name?: string,
  onClose?: () => void,
): () => void {
  const { keepalive, resource: pool } = root;
  const release = (keepalive instanceof Resource ? keepalive : root).addKeepalive(name, onClose);
  if (!(pool instanceof Resource) || pool.closed) return release;
  const releasePool = pool.addKeepalive(name, onClose);
  return () => runAll([release, releasePool]);
}
