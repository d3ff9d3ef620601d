import { inspect } from 'node:util';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { describeObject, placeName } from '../inspect.ts';
import { assertInternal, checkBoolean, checkInteger, checkOptions } from '../validate.ts';
import { type AllocateOptions, type MemoryResource, memoryManagerOf } from './buffer.ts';
import { allocateHost } from './host-allocation.ts';
import { HostVisibleBuffer } from './host-visible.ts';

/** Options of {@link MappedMemory.create}. */
export interface MappedMemoryOptions extends PlaceOptions {
  /** Whether every context of the process treats it as page-locked. Default true. */
  readonly portable?: boolean;
  /** Like {@link PinnedOptions.writeCombined}. Default false. */
  readonly writeCombined?: boolean;
}

/**
 * Host memory that the device accesses over the bus, like numba's `mapped_array`: for small
 * results, data that is read once, and flags that CPU and GPU exchange. Nothing is copied to the
 * device, so put data that a kernel reads often in device memory.
 *
 * @example
 * const memory = cuda.MappedMemory.create();
 * using buffer = memory.allocate(4096);
 * buffer.fill(7);
 * await buffer.context.synchronize();
 * console.log(new Uint8Array(buffer.buffer)[0]); // 7
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export class MappedMemory implements MemoryResource {
  readonly context: Context;
  readonly portable: boolean;
  readonly writeCombined: boolean;
  readonly deviceAccessible = true;
  readonly hostAccessible = true;

  private constructor(context: Context, portable: boolean, writeCombined: boolean) {
    assertInternal(context, Context, 'MappedMemory', 'MappedMemory.create');
    this.context = context;
    this.portable = portable;
    this.writeCombined = writeCombined;
  }

  [inspect.custom](): string {
    return describeObject('MappedMemory', () => [
      placeName(this.context),
      this.portable && 'portable',
      this.writeCombined && 'write-combined',
    ]);
  }

  static create(options?: MappedMemoryOptions): MappedMemory {
    const { portable, writeCombined, ...place } = checkOptions(
      options,
      ['context', 'device', 'portable', 'writeCombined'],
      'MappedMemory.create',
    );
    return new MappedMemory(
      Context.resolve(place),
      checkBoolean(portable, 'portable', true),
      checkBoolean(writeCombined, 'writeCombined', false),
    );
  }

  /**
   * Allocates whole pages, zeroed unless write-combined.
   *
   * @throws RangeError if the system is out of host memory, NotSupportedError, CudaError
   */
  allocate(byteLength: number, options?: AllocateOptions): HostVisibleBuffer {
    checkInteger(byteLength, 'byteLength', 1);
    checkOptions(options, ['stream'], 'allocate');
    const { context, portable, writeCombined } = this;
    const kind = { portable, mapped: true, writeCombined };
    const { devicePointer, viewsReference, release } =
      memoryManagerOf(context)?.allocateHost(byteLength, kind) ??
      allocateHost(context, byteLength, kind);
    const address = devicePointer as CUdeviceptr;
    return new HostVisibleBuffer({
      context,
      address,
      byteLength,
      resource: this,
      release,
      viewsReference,
    });
  }
}
