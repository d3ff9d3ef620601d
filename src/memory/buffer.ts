/** The options of buffers, and where their memory may come from. */
import type { CUdeviceptr } from '../../ffi/types.ts';
import { Context, type ContextMemory, type PlaceOptions } from '../context.ts';
import { CuffiError } from '../errors.ts';
import { isClosed, Resource, type Scope, stateKey } from '../lifetime.ts';
import type { WaitOptions } from '../poller.ts';
import { type Stream, type StreamOption, streamOf } from '../stream.ts';
import {
  assertInternal,
  checkInstance,
  checkInteger,
  checkOptions,
  formatValue,
  type HostMemory,
} from '../validate.ts';
import { copyBuffer, copyHost, copyHostSync, fillBuffer } from './buffer-copy.ts';
import { splitOffsetsWithin } from './chunks.ts';
import { DeviceMemory } from './device-memory.ts';
import type { HostAllocation, HostMemoryKind } from './host-allocation.ts';
import type { LockFlags } from './page-lock.ts';

/** Options of awaited copies. */
export interface CopyOptions extends StreamOption, WaitOptions {}

/** Options of {@link DeviceBuffer.close}. */
export interface BufferCloseOptions extends StreamOption {
  /** `'refuse'`: throws, and leaves it open, where other processes have it by a connection. */
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
  /** What must stay alive while the buffer is used; held, never touched, nor asked if it is closed. */
  readonly owner?: unknown;
}

/** Where a buffer's memory comes from. */
export type BufferOrigin = 'allocated' | 'borrowed' | 'imported';

/** What may be done with memory. */
export type Access = 'read-write' | 'read';

/** Frees memory in the order of a stream. */
export interface StreamOrderedRelease {
  /** Takes another stream than that of the allocation. */
  setStream(stream: Stream): void;
  release(): void;
}

/** @internal What a {@link DeviceBuffer} is made of. */
export interface BufferInit {
  readonly context: Context;
  readonly address: CUdeviceptr;
  readonly byteLength: number;
  readonly origin: BufferOrigin;
  readonly resource?: MemoryResource | undefined;
  readonly release?: (() => void) | StreamOrderedRelease | undefined;
  /** What it is closed with. Default: its context. */
  readonly owner?: Scope | undefined;
  /** The buffer that it is a part of, which is no view itself. */
  readonly root?: DeviceBuffer | undefined;
  /** What its memory lies in: it counts as closed when that is. Others' only stay alive by it. */
  readonly keepalive?: unknown;
  /** Addresses that one call of the driver may not go across. */
  readonly mappingBoundaries?: (() => readonly number[]) | undefined;
  /** Whether the process that it is of has ended. */
  readonly isOwnerGone?: (() => boolean) | undefined;
  /** Default: it may be written to. */
  readonly access?: Access | undefined;
}

/** Options of an allocation. */
export interface AllocateOptions {
  /**
   * The stream that the allocation is ordered in, where the resource is stream-ordered: the memory
   * may be used by work queued there afterwards. Default: the legacy default stream.
   */
  readonly stream?: Stream;
}

/**
 * Something that gives out memory and takes it back: plain device memory, a pool, mapped or
 * managed memory. A buffer knows the resource that it came from, and `close()` gives it back.
 */
export interface MemoryResource {
  readonly context: Context;
  /** Whether kernels and copies on the device reach it. */
  readonly deviceAccessible: boolean;
  /** Whether the CPU reaches it, as an ArrayBuffer. */
  readonly hostAccessible: boolean;
  /** @param byteLength at least 1 */
  allocate(byteLength: number, options?: AllocateOptions): DeviceBuffer;
}

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

/** @internal What serves the memory of a context if the caller names no resource; manager/ implements it. */
export interface ManagerResource extends ContextMemory, MemoryResource {
  allocateHost(byteLength: number, kind: HostMemoryKind): HostAllocation;
  /** Page-locks `memory`; answers how to unlock it. */
  lockHost(memory: HostMemory, flags: LockFlags): () => void;
}

/** @internal The memory manager of a context, where one was set. */
export const memoryManagerOf = (context: Context): ManagerResource | undefined =>
  // Nothing but the room manager/ puts one there.
  context.memory as ManagerResource | undefined;

/**
 * What a borrowed buffer keeps for an owner that its caller named: the owner stays alive with it,
 * and is nothing else to it. The buffer does not count as closed when a resource among them is.
 */
export const keepaliveFor = (owner: unknown): unknown =>
  owner === undefined ? undefined : { owner };

/** The memory of a buffer: whose it is, where it lies, what may be done with it, how it ends. */
abstract class BufferMemory extends Resource {
  readonly context: Context;
  readonly byteLength: number;
  /** Whether cuffi allocated it, another library did, or another process did. */
  readonly origin: BufferOrigin;
  /** What gave the memory out; undefined where cuffi did not. */
  readonly resource: MemoryResource | undefined;
  /**
   * Whether it may be written to: copies and fills of cuffi hold to it, and where it is virtual memory
   * of another process, the driver.
   */
  readonly access: Access;
  readonly #address: CUdeviceptr;
  readonly #release: BufferInit['release'];
  /** The buffer that this one is a view of. */
  readonly #root: DeviceBuffer | undefined;
  readonly #keepalive: unknown;
  readonly #mappingBoundaries: (() => readonly number[]) | undefined;
  readonly #isOwnerGone: (() => boolean) | undefined;

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
  }

  /** @internal The buffer that this one is a view of. */
  protected get viewOf(): DeviceBuffer | undefined {
    return this.#root;
  }

  override get closed(): boolean {
    // Not super.closed, which a launch would feel for each of its buffers.
    if (isClosed(this[stateKey])) return true;
    const container = this.#root ?? this.#keepalive;
    return container !== undefined && container instanceof Resource && container.closed;
  }

  /**
   * Gives the memory back when the GPU is done with it, and never waits; the second time does
   * nothing.
   *
   * Memory of a pool is given back in the order of a stream, that of its allocation unless
   * `options` name another: work that was queued there may still use it, and work of other streams
   * must be done or waited for. Other memory is freed when nothing runs in the context; plain device
   * memory, where there is want of room and in `context.flush()`, when the work is done that was
   * queued before. Work that cuffi does not know of must be done before this: it knows what was
   * queued through it, and what lies before that in the same stream, be it a borrowed one.
   *
   * What other processes have by a connection is closed here at once, and given back when they have
   * closed it, or have ended: see `leases` of cuffi/ipc.
   *
   * @throws CuffiError with `{ leases: 'refuse' }` where others have it: then it stays open
   */
  override close(options?: BufferCloseOptions): void {
    if (options !== undefined) this.#applyCloseOptions(options);
    super.close();
  }

  #applyCloseOptions(options: BufferCloseOptions): void {
    const { stream, leases } = checkOptions(options, ['stream', 'leases'], 'close');
    if (leases !== undefined && leases !== 'refuse')
      throw new TypeError(`leases must be 'refuse', not ${formatValue(leases)}`);
    // Of virtual memory others have that, and not this view of it.
    const { keepaliveNames } = this.#keepalive instanceof Resource ? this.#keepalive : this;
    if (leases === 'refuse' && !this.closed && keepaliveNames.length > 0)
      throw new CuffiError(
        `this ${this.byteLength}-byte buffer is in use by ${keepaliveNames.join(', ')}: it stays open`,
      );
    const releaseStream = streamOf(stream);
    if (!releaseStream || this.closed) return;
    releaseStream.handle; // a closed stream is refused
    if (typeof this.#release === 'object') this.#release.setStream(releaseStream);
  }

  /** The device address of the first byte. @throws ClosedError */
  get address(): CUdeviceptr {
    if (this.closed) throw this.closedError();
    return this.#address;
  }

  /** @internal As {@link address}, for writing. @throws TypeError for a read-only buffer */
  get writableAddress(): CUdeviceptr {
    if (this.access !== 'read-write')
      throw new TypeError('this buffer is read-only: it was shared, or opened, for reading');
    return this.address;
  }

  /**
   * Whether it is memory of a process that has ended. It stays usable here, but cannot be opened
   * anew elsewhere, unless it came by a file descriptor.
   */
  get ownerGone(): boolean {
    return (this.#root ?? this).#isOwnerGone?.() ?? false;
  }

  /** Whether it is memory of another process, mapped here. */
  get isMapped(): boolean {
    return this.origin === 'imported';
  }

  /** @internal What its memory lies in, where that is no buffer: virtual memory. */
  get keepalive(): unknown {
    return (this.#root ?? this).#keepalive;
  }

  /** @internal Where one call of the driver must not go on, as offsets in order. */
  get splitOffsets(): readonly number[] {
    return this.#mappingBoundaries
      ? splitOffsetsWithin(this.#mappingBoundaries(), this.#address, this.byteLength)
      : [];
  }

  /** @internal What a view of it is made of, as a part of `whole`. */
  protected viewInit(root: DeviceBuffer, begin: number, end: number, access: Access): BufferInit {
    return {
      context: this.context,
      address: (this.address + begin) as CUdeviceptr,
      byteLength: end - begin,
      origin: this.origin,
      resource: this.resource,
      root: root,
      mappingBoundaries: this.#mappingBoundaries,
      access,
    };
  }

  /** @internal What a buffer is made of that owns what this one did, closed by it. @throws CuffiError */
  protected transferredInit(): BufferInit {
    const { owner } = this.transferOwnership('its memory was moved to another buffer');
    return {
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
    };
  }

  override toString(): string {
    return `DeviceBuffer(${this.byteLength} bytes, ${this.origin}${this.closed ? ', closed' : ''})`;
  }
}

/**
 * A range of device memory.
 *
 * The buffer owns its memory if it allocated it; `close()` gives it back as soon as no work can
 * use it any more, and never waits. A `subarray` is a view of the same memory and keeps it alive.
 *
 * @example
 * using buffer = cuda.DeviceBuffer.allocate(1024);
 * await buffer.copyFrom(new Uint8Array(1024).fill(7));
 * const bytes = await buffer.copyToHost();
 */
export class DeviceBuffer extends BufferMemory {
  /**
   * Allocates device memory, uninitialised (cuMemAlloc): the kind that legacy IPC can share. A
   * memory manager that was set gives it out instead.
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
    // A resource of the caller's own may answer with anything.
    if (givenResource && checkInstance(buffer, DeviceBuffer, 'what memory.allocate returns').closed)
      throw new TypeError('memory.allocate must return an open buffer, not a closed one');
    if (buffer.byteLength < byteLength)
      throw new RangeError(
        `memory.allocate must return at least ${byteLength} bytes, not ${buffer.byteLength}`,
      );
    return buffer;
  }

  /** Memory that someone else owns, as a buffer: closing it forgets it and frees nothing. */
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

  /** @internal The buffer that this one is a view of, or itself. */
  get root(): DeviceBuffer {
    return this.viewOf ?? this;
  }

  /**
   * A view of the same memory that cuffi's copies and fills do not write to; kernels that are given
   * it can. Only a view of virtual memory can be sent to another process, whose cuffi then maps it
   * without write access.
   */
  readOnly(): DeviceBuffer {
    return this.view(0, this.byteLength, 'read');
  }

  /**
   * A view of the bytes from `begin` up to `end`; the same memory. It is closed with the buffer
   * that owns them.
   *
   * @throws RangeError beyond the buffer
   */
  subarray(begin = 0, end: number = this.byteLength): DeviceBuffer {
    this.address; // a closed buffer is refused first
    checkInteger(begin, 'begin', 0, this.byteLength);
    checkInteger(end, 'end', begin, this.byteLength);
    return this.view(begin, end, this.access);
  }

  /** @internal A view, told how it ends where that is asked for. */
  view(
    begin: number,
    end: number,
    access: Access,
    options?: Pick<BufferInit, 'release'>,
  ): DeviceBuffer {
    return new DeviceBuffer({ ...this.viewInit(this.root, begin, end, access), ...options });
  }

  /** @internal A buffer that owns what this one did, which is closed by it. @throws CuffiError */
  moveToNewBuffer(): DeviceBuffer {
    return new DeviceBuffer(this.transferredInit());
  }

  /** Sets every element to `value`; only queues. */
  fill(value: number, options?: FillOptions): void {
    fillBuffer(this, value, options);
  }

  /**
   * Copies this buffer to the beginning of another one; only queues. The other one may be on
   * another device: peer access is enabled for it, where there is any.
   *
   * @throws RangeError if `target` is smaller
   */
  copyTo(target: DeviceBuffer, options?: StreamOption): void {
    copyBuffer(this, checkInstance(target, DeviceBuffer, 'target'), options);
  }

  /**
   * Copies host memory to the beginning of this buffer, after the work queued in the stream; the
   * event loop turns meanwhile. Until the promise settles the buffer and `source` belong to the
   * copy: work that is queued meanwhile is not ordered with it. A `source` that is transferred
   * elsewhere meanwhile rejects the copy, and must be kept there until then: memory that is freed
   * under a copy can end the process.
   *
   * @throws RangeError if `source` is longer than the buffer
   */
  copyFrom(source: HostMemory, options?: CopyOptions): Promise<void> {
    return copyHost(this, 'to device', source, options);
  }

  /** As {@link copyFrom}, but blocks until it is done. */
  copyFromSync(source: HostMemory, options?: StreamOption): void {
    copyHostSync(this, 'to device', source, options);
  }

  /**
   * Copies to host memory, after the work queued in the stream: into `into`, from this buffer's
   * beginning as far as it reaches, or into a new Uint8Array of the whole buffer. Until the promise
   * settles both belong to the copy, as in {@link copyFrom}.
   *
   * @throws RangeError if `into` is longer than the buffer
   */
  copyToHost(into?: undefined, options?: CopyOptions): Promise<Uint8Array>;
  copyToHost<T extends HostMemory>(into: T, options?: CopyOptions): Promise<T>;
  async copyToHost(into?: HostMemory, options?: CopyOptions): Promise<HostMemory> {
    const target = into === undefined ? new Uint8Array(this.byteLength) : into;
    await copyHost(this, 'to host', target, options);
    return target;
  }

  /** As {@link copyToHost}, but blocks until it is done. */
  copyToHostSync(into?: undefined, options?: StreamOption): Uint8Array;
  copyToHostSync<T extends HostMemory>(into: T, options?: StreamOption): T;
  copyToHostSync(into?: HostMemory, options?: StreamOption): HostMemory {
    const target = into === undefined ? new Uint8Array(this.byteLength) : into;
    copyHostSync(this, 'to host', target, options);
    return target;
  }
}

const defaultResource = (context: Context): MemoryResource =>
  memoryManagerOf(context) ?? DeviceMemory.create({ context });
