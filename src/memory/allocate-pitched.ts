import { OUT0, OUT1, readHandle, readSize } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { checkInteger, checkOptions } from '../arguments.ts';
import { Context, type PlaceOptions } from '../context.ts';
import type { DeviceBuffer } from './buffer.ts';
import { DeviceMemory, ownedBuffer } from './device-memory.ts';
import { withRoom } from './room.ts';
import { roundUp } from './round-up.ts';
import { servedMemory } from './served-memory.ts';

/** Options of {@link allocatePitched}. */
export interface PitchedOptions extends PlaceOptions {
  /** The largest element that a kernel reads at once: 4, 8 or 16 bytes. Default 4. */
  readonly elementByteLength?: 4 | 8 | 16;
}

/** Device memory in rows; the buffer owns it. */
export interface PitchedAllocation {
  readonly buffer: DeviceBuffer;
  /** Bytes from row to row: the width, rounded up to what the device likes. */
  readonly rowPitch: number;
}

/** What the driver rounds rows up to. */
const PITCH_UNIT = 512;

/**
 * Allocates device memory for rows, uninitialised, each aligned so that the device reads it
 * quickly (cuMemAllocPitch). It is plain device memory, which legacy IPC can share. A memory manager
 * that was set gives it out instead: rows are 512 bytes apart then, or a multiple of that, from
 * wherever its memory begins.
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
  const context = Context.of(place);
  const served = servedMemory(context);
  if (served) {
    const rowPitch = roundUp(
      width,
      Math.max(PITCH_UNIT, context.device.attribute('texturePitchAlignment')),
    );
    return { buffer: served.allocate(rowPitch * height), rowPitch };
  }
  const [address, rowPitch] = context.run(() => {
    withRoom(context, 'cuMemAllocPitch_v2', width * height, () =>
      cu.cuMemAllocPitch_v2(OUT0, OUT1, width, height, elementByteLength),
    );
    return [readHandle<CUdeviceptr>(OUT0, cu.cuMemFree_v2), readSize(OUT1)];
  });
  const resource = DeviceMemory.create({ context });
  return { buffer: ownedBuffer(resource, address, rowPitch * height), rowPitch };
}
