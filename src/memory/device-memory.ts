import { OUT0, readHandle } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { check } from '../check.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { assertInternal, checkBoolean, checkInteger, checkOptions } from '../validate.ts';
import { allocateWithRetry } from './allocate-with-retry.ts';
import { type AllocateOptions, DeviceBuffer, type MemoryResource } from './buffer.ts';
import { roundUp } from './chunks.ts';
import { internalStream } from './internal-stream.ts';

/** Options of {@link DeviceMemory.create}. */
export interface DeviceMemoryOptions extends PlaceOptions {
  /**
   * Whether each allocation gets its own blocks, so that sharing it exposes no other memory. Sizes
   * are rounded up to 2 MiB. Default false.
   */
  readonly private?: boolean;
}

/** The unit in which the driver maps and shares memory. */
const BLOCK_BYTE_LENGTH = 2 << 20;

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

/**
 * Frees plain device memory that no work uses. cuMemFree would wait for all streams; a
 * stream-ordered free waits for none. Synchronizing that stream, which has no other work, returns
 * the memory to the device (measured on an H200).
 *
 * @throws CudaError if the memory was not freed
 */
export function freeNonBlocking(context: Context, address: CUdeviceptr): void {
  const stream = internalStream(context, 'frees');
  check(cu.cuMemFreeAsync(address, stream), 'cuMemFreeAsync');
  // If this fails, the memory is still freed. The next successful synchronization returns it.
  cu.cuStreamSynchronize(stream);
}
