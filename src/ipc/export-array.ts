import type { DeviceArray } from '../array/device-array.ts';
import { extents } from '../array/layout.ts';
import type { DeviceBuffer } from '../memory/buffer.ts';
import { type IpcMemoryDescriptor, sealDescriptor } from './descriptor.ts';
import { describeLayout } from './descriptor-layout.ts';

/**
 * A descriptor of exactly the bytes that the items of an array take, from the first to the last.
 *
 * @param describe what describes these bytes
 * @throws RangeError for an array without items, ClosedError
 */
export function exportArray<M extends IpcMemoryDescriptor>(
  array: DeviceArray,
  describe: (part: DeviceBuffer) => M,
): M {
  array.address; // a closed array is refused
  const { buffer, dtype, layout, readOnly } = array;
  const { low, high } = extents(layout);
  if (low === high) throw new RangeError('an array without items has no memory that can be shared');
  const part = buffer.subarray(low, high);
  const described = { ...describe(readOnly ? part.readOnly() : part) };
  return sealDescriptor({ ...described, layout: describeLayout(dtype, layout) } as never) as M;
}
