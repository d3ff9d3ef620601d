import { OUT0, OUT1, readHandle, readSize } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { streamOf } from '../stream.ts';
import { checkInstance, checkInteger, checkOptions } from '../validate.ts';
import { allocateWithRetry } from './allocate-with-retry.ts';
import {
  DeviceBuffer,
  DeviceMemory,
  type FillOptions,
  makeOwnedBuffer,
  memoryManagerOf,
} from './buffer.ts';
import { checkFillElement, fillRowsOnDevice } from './buffer-copy.ts';
import { roundUp } from './chunks.ts';
import {
  checkExtent,
  checkRegion,
  type Extent,
  flatten,
  isEmpty,
  type PitchedMemory,
  splitBox,
} from './pitched.ts';
import { noteMemoryUse } from './use-order.ts';

/** Options of {@link allocatePitched}. */
export interface PitchedOptions extends PlaceOptions {
  /** The size of the largest element that a kernel reads at once: 4, 8 or 16 bytes. Default 4. */
  readonly elementByteLength?: 4 | 8 | 16;
}

/** Device memory in rows. The buffer owns the memory. */
export interface PitchedAllocation {
  readonly buffer: DeviceBuffer;
  /** Bytes from row to row: the width, rounded up as the device prefers. */
  readonly rowPitch: number;
}

/** The driver rounds rows up to this size. */
const PITCH_ALIGNMENT = 512;

/**
 * Allocates uninitialized device memory for rows, each aligned for fast access (cuMemAllocPitch).
 * The memory is plain device memory, which legacy IPC can share. If a memory manager is set, the
 * manager allocates it: rows are then a multiple of 512 bytes apart, and the first starts at the
 * manager's address.
 *
 * @param width bytes in a row, at least 1
 * @param height rows, at least 1
 * @example
 * const { buffer, rowPitch } = cuda.allocatePitched(1000, 500);
 * await cuda.copyPitched({ memory: buffer, rowPitch }, { memory: image }, { width: 1000, height: 500 });
 * @throws CudaError CUDA_ERROR_OUT_OF_MEMORY
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function allocatePitched(
  width: number,
  height: number,
  options?: PitchedOptions,
): PitchedAllocation {
  const { elementByteLength = 4, ...place } = checkOptions(
    options,
    ['context', 'device', 'elementByteLength'],
    'allocatePitched',
  );
  checkInteger(width, 'width', 1);
  checkInteger(height, 'height', 1, Math.floor(Number.MAX_SAFE_INTEGER / width));
  if (![4, 8, 16].includes(elementByteLength))
    throw new RangeError(`elementByteLength must be 4, 8 or 16, not ${String(elementByteLength)}`);
  const context = Context.resolve(place);
  const manager = memoryManagerOf(context);
  if (manager) {
    const rowPitch = roundUp(
      width,
      Math.max(PITCH_ALIGNMENT, context.device.attribute('texturePitchAlignment')),
    );
    return { buffer: manager.allocate(rowPitch * height), rowPitch };
  }
  const [address, rowPitch] = context.run(() => {
    allocateWithRetry(context, 'cuMemAllocPitch_v2', width * height, () =>
      cu.cuMemAllocPitch_v2(OUT0, OUT1, width, height, elementByteLength),
    );
    return [readHandle<CUdeviceptr>(OUT0, cu.cuMemFree_v2), readSize(OUT1)];
  });
  const resource = DeviceMemory.create({ context });
  return { buffer: makeOwnedBuffer(resource, address, rowPitch * height), rowPitch };
}

/**
 * Sets every element of rows and slices of device memory to `value`. The bytes between rows stay
 * unchanged. Only queues the work.
 *
 * @param extent with a width in bytes that is a multiple of the element
 * @throws RangeError if rows are not whole, aligned elements, or do not fit in the memory;
 * TypeError, ClosedError, CudaError
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function fillPitched(
  target: PitchedMemory,
  value: number,
  extent: Extent,
  options?: FillOptions,
): void {
  const { stream, elementByteLength } = checkOptions(
    options,
    ['stream', 'elementByteLength'],
    'fillPitched',
  );
  const element = checkFillElement(value, elementByteLength);
  const given = checkExtent(extent, 'fillPitched');
  const region = checkRegion(target, 'target', given, 'fillPitched');
  const buffer = checkInstance(region.memory, DeviceBuffer, 'target.memory');
  const checkedStream = streamOf(stream);
  const { context } = buffer;
  const start = buffer.readableAddress + region.byteOffset;
  const { rowPitch, slicePitch } = region;
  const { width: row, height: rows, depth: slices } = given;
  const steps = [start, row, rows > 1 ? rowPitch : 0, slices > 1 ? slicePitch : 0];
  if (steps.some((step) => step % element !== 0))
    throw new RangeError(
      `rows of ${row} bytes at ${start}, ${rowPitch} apart, are not whole, aligned elements of ${element} bytes`,
    );
  const box = flatten(given, [region]);
  if (isEmpty(box)) return;
  noteMemoryUse(checkedStream?.context ?? context, [context]);
  buffer.orderUse(checkedStream);
  for (const part of splitBox(box, [region])) {
    const { width, height, depth } = part.box;
    const [offset = 0] = part.offsets;
    for (let z = 0; z < depth; z += 1) {
      const address = (start + offset + z * slicePitch) as CUdeviceptr;
      const extents = [width / element, height] as const;
      fillRowsOnDevice(context, address, rowPitch, value, element, extents, checkedStream);
    }
  }
}
