import { OUT0, readHandle } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import {
  checkHostMemory,
  checkInstance,
  checkInteger,
  checkOptions,
  type HostMemory,
} from '../arguments.ts';
import { check, cudaError } from '../check.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { Resource } from '../resource.ts';
import { Stream } from '../stream.ts';
import type { WaitOptions } from '../wait.ts';
import { copyAwaited, copyOnDevice, copySync, fillOnDevice, type HostCopy } from './copy.ts';

/** Options of calls that work in a stream. */
export interface StreamOption {
  /** The stream to work in. Default: the legacy default stream. */
  readonly stream?: Stream;
}

/** Options of awaited copies. */
export interface CopyOptions extends StreamOption, WaitOptions {}

/** Options of {@link DeviceBuffer.fill}. */
export interface FillOptions extends StreamOption {
  /** The width of `value` in bytes: 1, 2 or 4. Default 1. */
  readonly elementByteLength?: 1 | 2 | 4;
}

/** Options of {@link DeviceBuffer.fromPointer}. */
export interface PointerOptions extends PlaceOptions {
  /** What must stay alive while the buffer is used; held, never touched. */
  readonly owner?: unknown;
}

/** Where a buffer's memory comes from. */
export type BufferOrigin = 'allocated' | 'borrowed' | 'imported';

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
  readonly #address: CUdeviceptr;
  /** The buffer that this one is a view of, or whatever else must outlive it. */
  readonly #keeps: unknown;

  /** @internal */
  constructor(init: {
    readonly context: Context;
    readonly address: CUdeviceptr;
    readonly byteLength: number;
    readonly origin: BufferOrigin;
    readonly release?: (() => void) | undefined;
    readonly keeps?: unknown;
  }) {
    super('DeviceBuffer', { owner: init.context.resources, release: init.release });
    this.context = init.context;
    this.byteLength = init.byteLength;
    this.origin = init.origin;
    this.#address = init.address;
    this.#keeps = init.keeps;
  }

  /**
   * Allocates device memory, uninitialised (cuMemAlloc): the kind that legacy IPC can share.
   *
   * @param byteLength at least 1
   * @throws CudaError CUDA_ERROR_OUT_OF_MEMORY
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
   */
  static allocate(byteLength: number, options?: PlaceOptions): DeviceBuffer {
    checkInteger(byteLength, 'byteLength', 1);
    const context = Context.of(
      checkOptions(options, ['context', 'device'], 'DeviceBuffer.allocate'),
    );
    const { releases, resets } = context;
    const address = context.run(() => allocate(context, byteLength));
    return new DeviceBuffer({
      context,
      address,
      byteLength,
      origin: 'allocated',
      release: () =>
        releases.submit(() => {
          if (context.resets === resets) check(cu.cuMemFree_v2(address), 'cuMemFree_v2');
        }),
    });
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
    return super.closed || (this.#keeps instanceof DeviceBuffer && this.#keeps.closed);
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
      keeps: this.#keeps instanceof DeviceBuffer ? this.#keeps : this,
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
    const count = this.byteLength / width;
    this.context.visitedBy(streamOf(stream)?.context ?? this.context);
    fillOnDevice(this.context, address, value, width, count, stream);
  }

  /**
   * Copies this buffer to the beginning of another one; only queues.
   *
   * @throws RangeError if `target` is smaller
   */
  copyTo(target: DeviceBuffer, options?: StreamOption): void {
    const { stream } = checkOptions(options, ['stream'], 'copyTo');
    checkInstance(target, DeviceBuffer, 'target');
    const source = this.address;
    checkFits(this.byteLength, target.byteLength, 'the target');
    const where = streamOf(stream)?.context ?? this.context;
    this.context.visitedBy(where);
    target.context.visitedBy(where);
    copyOnDevice(this.context, target.address, source, this.byteLength, stream);
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

  #copy(direction: HostCopy['direction'], host: Uint8Array, stream: Stream | undefined): HostCopy {
    const device = (): CUdeviceptr => this.address;
    device(); // a closed buffer is refused now, not when the copy begins
    return { direction, context: this.context, host, device, stream };
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

/** With the context current: allocates; where there is no room, what waits to be freed goes first. */
function allocate(context: Context, byteLength: number): CUdeviceptr {
  let status = cu.cuMemAlloc_v2(OUT0, byteLength);
  const { releases } = context;
  if (status === CUresult.CUDA_ERROR_OUT_OF_MEMORY && releases.size > 0) {
    releases.collect();
    status = cu.cuMemAlloc_v2(OUT0, byteLength);
  }
  if (status === CUresult.CUDA_ERROR_OUT_OF_MEMORY) {
    const pending = releases.size;
    const { free } = context.memoryInfo();
    throw cudaError(
      status,
      'cuMemAlloc_v2',
      `allocating ${byteLength} bytes with ${free} free` +
        (pending > 0 ? ` (${pending} releases wait for the GPU: await context.flush())` : ''),
    );
  }
  check(status, 'cuMemAlloc_v2', () => `allocating ${byteLength} bytes`);
  return readHandle<CUdeviceptr>(OUT0, cu.cuMemFree_v2);
}
