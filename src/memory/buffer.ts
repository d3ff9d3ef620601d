import type { CUdeviceptr } from '../../ffi/types.ts';
import { checkInstance, checkInteger, checkOptions, type HostMemory } from '../arguments.ts';
import { Context } from '../context.ts';
import { copyBuffer, copyHost, copyHostSync, fillBuffer, streamOf } from './buffer-copies.ts';
import { BufferMemory } from './buffer-memory.ts';
import type {
  Access,
  BufferInit,
  BufferOptions,
  CopyOptions,
  FillOptions,
  PointerOptions,
  StreamOption,
} from './buffer-options.ts';
import { DeviceMemory } from './device-memory.ts';
import { held } from './held.ts';
import { checkMemory, type MemoryResource } from './memory-resource.ts';
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
    const named = memory === undefined ? undefined : checkMemory(memory);
    if (named && (place.context || place.device !== undefined))
      throw new TypeError('give either a memory resource or a place, not both');
    const ordered = streamOf(stream);
    const resource = named ?? defaultMemory(Context.of(place));
    const buffer = resource.allocate(byteLength, ordered ? { stream: ordered } : {});
    // A resource of the caller's own may answer with anything.
    if (named && checkInstance(buffer, DeviceBuffer, 'what memory.allocate returns').closed)
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
      context: Context.of(place),
      address: address as CUdeviceptr,
      byteLength,
      origin: 'borrowed',
      keeps: held(owner),
    });
  }

  /** @internal The buffer that this one is a view of, or itself. */
  get whole(): DeviceBuffer {
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
    ending?: Pick<BufferInit, 'release'>,
  ): DeviceBuffer {
    return new DeviceBuffer({ ...this.partOf(this.whole, begin, end, access), ...ending });
  }

  /** @internal A buffer that owns what this one did, which is closed by it. @throws CuffiError */
  handedOver(): DeviceBuffer {
    return new DeviceBuffer(this.takenOver());
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

const defaultMemory = (context: Context): MemoryResource =>
  servedMemory(context) ?? DeviceMemory.create({ context });
