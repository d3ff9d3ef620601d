import type { CUdeviceptr } from '../../ffi/types.ts';
import { checkInstance, checkOptions } from '../arguments.ts';
import { DeviceBuffer } from './buffer.ts';
import { checkElement, noteVisits, streamOf } from './buffer-copies.ts';
import type { FillOptions } from './buffer-options.ts';
import { fillRowsOnDevice } from './on-device.ts';
import {
  checkExtent,
  checkRegion,
  type Extent,
  flattened,
  isEmpty,
  type PitchedMemory,
  parts,
} from './pitched.ts';

/**
 * Sets every element of rows and slices of device memory to `value`; what lies between the rows
 * stays. Only queues.
 *
 * @param extent its width is in bytes, whole elements
 * @throws RangeError where rows are no whole, aligned elements, or lie beyond the memory;
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
  const element = checkElement(value, elementByteLength);
  const given = checkExtent(extent, 'fillPitched');
  const region = checkRegion(target, 'target', given, 'fillPitched');
  const buffer = checkInstance(region.memory, DeviceBuffer, 'target.memory');
  const ordered = streamOf(stream);
  const { context } = buffer;
  const start = buffer.address + region.byteOffset;
  const { rowPitch, slicePitch } = region;
  const { width: row, height: rows, depth: slices } = given;
  const steps = [start, row, rows > 1 ? rowPitch : 0, slices > 1 ? slicePitch : 0];
  if (steps.some((step) => step % element !== 0))
    throw new RangeError(
      `rows of ${row} bytes at ${start}, ${rowPitch} apart, are no whole, aligned elements of ${element} bytes`,
    );
  const box = flattened(given, [region]);
  if (isEmpty(box)) return;
  noteVisits(ordered?.context ?? context, [context]);
  for (const part of parts(box, [region])) {
    const { width, height, depth } = part.box;
    const [offset = 0] = part.offsets;
    for (let z = 0; z < depth; z += 1) {
      const address = (start + offset + z * slicePitch) as CUdeviceptr;
      const extents = [width / element, height] as const;
      fillRowsOnDevice(context, address, rowPitch, value, element, extents, ordered);
    }
  }
}
