import type { DeviceArray } from '../array/device-array.ts';
import { extents } from '../array/layout.ts';
import { repeatsItems } from '../array/overlap.ts';
import type { DeviceBuffer } from '../memory/buffer.ts';
import { VirtualMemory } from '../memory/virtual.ts';
import { type IpcMemoryDescriptor, sealDescriptor } from './descriptor.ts';
import { describeLayout } from './descriptor-layout.ts';
import { originOf } from './origin.ts';

/**
 * A descriptor of exactly the bytes that the items of an array take, from the first to the last.
 *
 * @param describe what describes these bytes
 * @throws RangeError for an array without items, ClosedError, IpcError for a read-only array where
 * the driver cannot protect the memory
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
  // Who opens repeated items sees by the layout that they are not written to.
  const isProtected = readOnly && (isVirtual(part) || !repeatsItems(layout));
  const described = { ...describe(isProtected ? part.readOnly() : part) };
  return sealDescriptor({ ...described, layout: describeLayout(dtype, layout) } as never) as M;
}

/** Whether the driver can map it without write access. */
const isVirtual = ({ keeper, whole }: DeviceBuffer): boolean =>
  keeper instanceof VirtualMemory || originOf(whole)?.descriptor.kind === 'virtual';
