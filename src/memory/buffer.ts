import type { CUdeviceptr } from '../../ffi/types.ts';
import { checkInstance, checkInteger, checkOptions, type HostMemory, shown } from '../arguments.ts';
import { Context } from '../context.ts';
import { CuffiError } from '../errors.ts';
import { Resource } from '../resource.ts';
import type { Stream } from '../stream.ts';
import { copyBuffer, copyHost, copyHostSync, fillBuffer, streamOf } from './buffer-copies.ts';
import type {
  Access,
  BufferCloseOptions,
  BufferInit,
  BufferOptions,
  BufferOrigin,
  CopyOptions,
  FillOptions,
  PointerOptions,
  StreamOption,
} from './buffer-options.ts';
import { DeviceMemory } from './device-memory.ts';
import { held } from './held.ts';
import { checkMemory, type MemoryResource } from './memory-resource.ts';
import { cutsWithin } from './pieces.ts';
import { servedMemory } from './served-memory.ts';

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
export class DeviceBuffer extends Resource {
  readonly context: Context;
  readonly byteLength: number;
  /** Whether cuffi allocated it, another library did, or another process did. */
  readonly origin: BufferOrigin;
  /** What gave the memory out; undefined where cuffi did not. */
  readonly resource: MemoryResource | undefined;
  /** Whether it may be written to: copies and fills of cuffi hold to it. */
  readonly access: Access;
  readonly #address: CUdeviceptr;
  readonly #freeIn: ((stream: Stream) => void) | undefined;
  /** The buffer that this one is a view of. */
  readonly #viewOf: DeviceBuffer | undefined;
  readonly #keeps: unknown;
  readonly #borders: (() => readonly number[]) | undefined;
  readonly #isOrphan: (() => boolean) | undefined;

  /** @internal */
  constructor(init: BufferInit) {
    super('DeviceBuffer', { owner: init.owner ?? init.context.resources, release: init.release });
    this.context = init.context;
    this.byteLength = init.byteLength;
    this.origin = init.origin;
    this.resource = init.resource;
    this.access = init.access ?? 'read-write';
    this.#address = init.address;
    this.#freeIn = init.freeIn;
    this.#viewOf = init.viewOf;
    this.#keeps = init.keeps;
    this.#borders = init.borders;
    this.#isOrphan = init.isOrphan;
  }

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
    const named = memory === undefined ? undefined : checkMemory(memory);
    if (named && (place.context || place.device !== undefined))
      throw new TypeError('give either a memory resource or a place, not both');
    const ordered = streamOf(stream);
    const resource = named ?? defaultMemory(Context.of(place));
    return resource.allocate(byteLength, ordered ? { stream: ordered } : {});
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
      context: Context.of(place),
      address: address as CUdeviceptr,
      byteLength,
      origin: 'borrowed',
      keeps: held(owner),
    });
  }

  /** @internal The buffer that this one is a view of, or itself. */
  get whole(): DeviceBuffer {
    return this.#viewOf ?? this;
  }

  override get closed(): boolean {
    const outer = this.#viewOf ?? this.#keeps;
    return super.closed || (outer instanceof Resource && outer.closed);
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
    if (options !== undefined) this.#closeIn(options);
    super.close();
  }

  #closeIn(options: BufferCloseOptions): void {
    const { stream, leases } = checkOptions(options, ['stream', 'leases'], 'close');
    if (leases !== undefined && leases !== 'refuse')
      throw new TypeError(`leases must be 'refuse', not ${shown(leases)}`);
    if (leases === 'refuse' && !this.closed && this.holders.length > 0)
      throw new CuffiError(
        `this ${this.byteLength}-byte buffer is in use by ${this.holders.join(', ')}: it stays open`,
      );
    const last = streamOf(stream);
    if (!last || this.closed) return;
    last.handle; // a closed stream is refused
    this.#freeIn?.(last);
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
    return this.whole.#isOrphan?.() ?? false;
  }

  /** Whether it is memory of another process, mapped here. */
  get isMapped(): boolean {
    return this.origin === 'imported';
  }

  /** @internal What its memory lies in, where that is no buffer: virtual memory. */
  get keeper(): unknown {
    return this.whole.#keeps;
  }

  /** A view of the same memory that cannot be written to here, nor where it is sent. */
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
    ending?: Pick<BufferInit, 'release' | 'freeIn'>,
  ): DeviceBuffer {
    return new DeviceBuffer({
      context: this.context,
      address: (this.address + begin) as CUdeviceptr,
      byteLength: end - begin,
      origin: this.origin,
      resource: this.resource,
      viewOf: this.whole,
      borders: this.#borders,
      access,
      ...ending,
    });
  }

  /** @internal A buffer that owns what this one did, which is closed by it. @throws CuffiError */
  handedOver(): DeviceBuffer {
    const { owner, release } = this.handOver('its memory was moved to another buffer');
    return new DeviceBuffer({
      context: this.context,
      address: this.#address,
      byteLength: this.byteLength,
      origin: this.origin,
      resource: this.resource,
      release,
      owner,
      freeIn: this.#freeIn,
      keeps: this.#keeps,
      borders: this.#borders,
      isOrphan: this.#isOrphan,
      access: this.access,
    });
  }

  /** @internal Where one call of the driver must not go on, as offsets in order. */
  get cuts(): readonly number[] {
    return this.#borders ? cutsWithin(this.#borders(), this.#address, this.byteLength) : [];
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

  override toString(): string {
    return `DeviceBuffer(${this.byteLength} bytes, ${this.origin}${this.closed ? ', closed' : ''})`;
  }
}

const defaultMemory = (context: Context): MemoryResource =>
  servedMemory(context) ?? DeviceMemory.create({ context });
