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
   * Whether each allocation has blocks of its own: sharing one then shows nothing else. Sizes are
   * rounded up to 2 MiB for it. Default false.
   */
  readonly private?: boolean;
}

/** What the driver maps and shares as one. */
const BLOCK_BYTE_LENGTH = 2 << 20;

/**
 * Plain device memory (cuMemAlloc): the kind that legacy IPC can share, and what
 * `DeviceBuffer.allocate` gives out unless it is told otherwise.
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

/** A buffer of memory that the driver allocated by itself, freed when it is closed. */
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

/** Freeing plain device memory beside a stream that is held up. */

/**
 * Frees plain device memory that no work uses any more. cuMemFree would wait for all streams; a free
 * in the order of a stream waits for none, and the memory is back when that stream, which has no
 * other work, is waited for (measured on an H200).
 *
 * @throws CudaError where it was not freed
 */
export function freeNonBlocking(context: Context, address: CUdeviceptr): void {
  const stream = internalStream(context, 'frees');
  check(cu.cuMemFreeAsync(address, stream), 'cuMemFreeAsync');
  // Where that fails, it is freed all the same, and back at the next wait that does not.
  cu.cuStreamSynchronize(stream);
}
