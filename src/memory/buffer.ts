import type { CUdeviceptr } from '../../ffi/types.ts';
import {
  checkHostMemory,
  checkInstance,
  checkInteger,
  checkOptions,
  type HostMemory,
} from '../arguments.ts';
import { Context } from '../context.ts';
import { Resource, type ResourceSet } from '../resource.ts';
import { Stream } from '../stream.ts';
import type {
  BufferOptions,
  BufferOrigin,
  CopyOptions,
  FillOptions,
  PointerOptions,
  StreamOption,
} from './buffer-options.ts';
import { copyAwaited, copySync } from './copy.ts';
import { DeviceMemory } from './device-memory.ts';
import type { MemoryResource } from './memory-resource.ts';
import { copyOnDevice, fillOnDevice } from './on-device.ts';
import { copyBetweenDevices } from './peer.ts';
import { cutsWithin, pieces } from './pieces.ts';
import type { HostCopy } from './transfer.ts';

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
  readonly #address: CUdeviceptr;
  readonly #freeIn: ((stream: Stream) => void) | undefined;
  /** The buffer that this one is a view of, or whatever else must outlive it. */
  readonly #keeps: unknown;
  readonly #borders: (() => readonly number[]) | undefined;

  /** @internal */
  constructor(init: {
    readonly context: Context;
    readonly address: CUdeviceptr;
    readonly byteLength: number;
    readonly origin: BufferOrigin;
    readonly resource?: MemoryResource | undefined;
    readonly release?: (() => void) | undefined;
    /** What it is closed with. Default: its context. */
    readonly owner?: ResourceSet | undefined;
    /** Where the memory is freed in a stream: takes another one than that of the allocation. */
    readonly freeIn?: ((stream: Stream) => void) | undefined;
    readonly keeps?: unknown;
    /** Addresses that one call of the driver may not go across. */
    readonly borders?: (() => readonly number[]) | undefined;
  }) {
    super('DeviceBuffer', { owner: init.owner ?? init.context.resources, release: init.release });
    this.context = init.context;
    this.byteLength = init.byteLength;
    this.origin = init.origin;
    this.resource = init.resource;
    this.#address = init.address;
    this.#freeIn = init.freeIn;
    this.#keeps = init.keeps;
    this.#borders = init.borders;
  }

  /**
   * Allocates device memory, uninitialised (cuMemAlloc): the kind that legacy IPC can share.
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
    if (memory && (place.context || place.device !== undefined))
      throw new TypeError('give either a memory resource or a place, not both');
    const ordered = streamOf(stream);
    const resource = memory ?? DeviceMemory.create(place);
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
      keeps: owner,
    });
  }

  override get closed(): boolean {
    return super.closed || (this.#keeps instanceof Resource && this.#keeps.closed);
  }

  /**
   * Gives the memory back; the second time does nothing.
   *
   * Memory of a pool is given back in the order of a stream, that of its allocation unless
   * `options` name another: work that was queued there may still use it, and work of other streams
   * must be done or waited for. Other memory is freed when the whole context is done with it.
   */
  override close(options?: StreamOption): void {
    const { stream } = checkOptions(options, ['stream'], 'close');
    const last = streamOf(stream);
    if (last && !this.closed) {
      last.handle; // a closed stream is refused
      this.#freeIn?.(last);
    }
    super.close();
  }

  /** The device address of the first byte. @throws ClosedError */
  get address(): CUdeviceptr {
    if (this.closed) throw this.closedError();
    return this.#address;
  }

  /**
   * A view of the bytes from `begin` up to `end`; the same memory. It is closed with the buffer
   * that owns them.
   *
   * @throws RangeError beyond the buffer
   */
  subarray(begin = 0, end: number = this.byteLength): DeviceBuffer {
    const address = this.address;
    checkInteger(begin, 'begin', 0, this.byteLength);
    checkInteger(end, 'end', begin, this.byteLength);
    return new DeviceBuffer({
      context: this.context,
      address: (address + begin) as CUdeviceptr,
      byteLength: end - begin,
      origin: this.origin,
      resource: this.resource,
      keeps: this.#keeps instanceof DeviceBuffer ? this.#keeps : this,
      borders: this.#borders,
    });
  }

  /** Sets every element to `value`; only queues. */
  fill(value: number, options?: FillOptions): void {
    const { stream, elementByteLength: width = 1 } = checkOptions(
      options,
      ['stream', 'elementByteLength'],
      'fill',
    );
    if (width !== 1 && width !== 2 && width !== 4)
      throw new RangeError(`elementByteLength must be 1, 2 or 4, not ${String(width)}`);
    checkInteger(value, 'value', 0, 2 ** (8 * width) - 1);
    const address = this.address;
    if (this.byteLength % width !== 0 || address % width !== 0)
      throw new RangeError(
        `${this.byteLength} bytes at ${address} are no whole, aligned elements of ${width} bytes`,
      );
    const where = streamOf(stream)?.context ?? this.context;
    this.context.activity.visitedBy(where.activity);
    for (const [offset, byteLength] of pieces(this.byteLength, this.#cuts()))
      fillOnDevice(
        this.context,
        (address + offset) as CUdeviceptr,
        value,
        width,
        byteLength / width,
        stream,
      );
  }

  /**
   * Copies this buffer to the beginning of another one; only queues. The other one may be on
   * another device: peer access is enabled for it, where there is any.
   *
   * @throws RangeError if `target` is smaller
   */
  copyTo(target: DeviceBuffer, options?: StreamOption): void {
    const { stream } = checkOptions(options, ['stream'], 'copyTo');
    checkInstance(target, DeviceBuffer, 'target');
    const source = this.address;
    checkFits(this.byteLength, target.byteLength, 'the target');
    const address = target.address;
    const where = streamOf(stream)?.context ?? this.context;
    this.context.activity.visitedBy(where.activity);
    target.context.activity.visitedBy(where.activity);
    const isNear = target.context.device === this.context.device;
    const cuts = [...new Set([...this.#cuts(), ...target.#cuts()])].sort((a, b) => a - b);
    const within = cuts.filter((offset) => offset < this.byteLength);
    for (const [offset, byteLength] of pieces(this.byteLength, within)) {
      const from = (source + offset) as CUdeviceptr;
      const to = (address + offset) as CUdeviceptr;
      if (isNear) copyOnDevice(this.context, to, from, byteLength, stream);
      else
        copyBetweenDevices(
          { context: this.context, address: from },
          { context: target.context, address: to },
          byteLength,
          stream,
        );
    }
  }

  /**
   * Copies host memory to the beginning of this buffer, after the work queued in the stream.
   * Until the promise settles the buffer and `source` belong to the copy: work that is queued
   * meanwhile is not ordered with it.
   *
   * @throws RangeError if `source` is longer than the buffer
   */
  async copyFrom(source: HostMemory, options?: CopyOptions): Promise<void> {
    const { signal, ...rest } = checkOptions(options, ['stream', 'signal'], 'copyFrom');
    await copyAwaited(this.#fromHost(source, rest, 'copyFrom'), signal ? { signal } : {});
  }

  /** As {@link copyFrom}, but blocks until it is done. */
  copyFromSync(source: HostMemory, options?: StreamOption): void {
    copySync(this.#fromHost(source, options, 'copyFromSync'));
  }

  /**
   * Copies to host memory, after the work queued in the stream: into `into`, from this buffer's
   * beginning as far as it reaches, or into a new Uint8Array of the whole buffer.
   *
   * @throws RangeError if `into` is longer than the buffer
   */
  copyToHost(into?: undefined, options?: CopyOptions): Promise<Uint8Array>;
  copyToHost<T extends HostMemory>(into: T, options?: CopyOptions): Promise<T>;
  async copyToHost(into?: HostMemory, options?: CopyOptions): Promise<HostMemory> {
    const { signal, ...rest } = checkOptions(options, ['stream', 'signal'], 'copyToHost');
    const target = into ?? new Uint8Array(this.byteLength);
    await copyAwaited(this.#toHost(target, rest, 'copyToHost'), signal ? { signal } : {});
    return target;
  }

  /** As {@link copyToHost}, but blocks until it is done. */
  copyToHostSync(into?: undefined, options?: StreamOption): Uint8Array;
  copyToHostSync<T extends HostMemory>(into: T, options?: StreamOption): T;
  copyToHostSync(into?: HostMemory, options?: StreamOption): HostMemory {
    const target = into ?? new Uint8Array(this.byteLength);
    copySync(this.#toHost(target, options, 'copyToHostSync'));
    return target;
  }

  #fromHost(source: HostMemory, options: StreamOption | undefined, call: string): HostCopy {
    const { stream } = checkOptions(options, ['stream'], call);
    const host = checkHostMemory(source, 'source');
    checkFits(host.byteLength, this.byteLength, 'the buffer');
    return this.#copy('to device', host, streamOf(stream));
  }

  #toHost(target: HostMemory, options: StreamOption | undefined, call: string): HostCopy {
    const { stream } = checkOptions(options, ['stream'], call);
    const host = checkHostMemory(target, 'into');
    checkFits(host.byteLength, this.byteLength, 'the buffer');
    return this.#copy('to host', host, streamOf(stream));
  }

  #cuts(): number[] {
    return this.#borders ? cutsWithin(this.#borders(), this.#address, this.byteLength) : [];
  }

  #copy(direction: HostCopy['direction'], host: Uint8Array, stream: Stream | undefined): HostCopy {
    const device = (): CUdeviceptr => this.address;
    device(); // a closed buffer is refused now, not when the copy begins
    return { direction, context: this.context, host, device, cuts: this.#cuts(), stream };
  }

  override toString(): string {
    return `DeviceBuffer(${this.byteLength} bytes, ${this.origin}${this.closed ? ', closed' : ''})`;
  }
}

const streamOf = (stream: unknown): Stream | undefined =>
  stream === undefined ? undefined : checkInstance(stream, Stream, 'stream');

function checkFits(byteLength: number, available: number, where: string): void {
  if (byteLength > available)
    throw new RangeError(`${byteLength} bytes do not fit in ${where}, which has ${available}`);
}
