import { DeviceArray } from '../../array/device-array.ts';
import { layoutExtents } from '../../array/layout.ts';
import { hasRepeatedItems } from '../../array/overlap.ts';
import { IpcError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { DeviceBuffer } from '../../memory/buffer.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import type { Stream } from '../../stream.ts';
import {
  describeLayout,
  type IpcDescriptor,
  type IpcMemoryDescriptor,
  layoutOf,
  withChecksum,
} from '../descriptor.ts';
import { importSourceOf } from './import-source.ts';

/**
 * A descriptor of exactly the bytes that the items of an array take, from the first to the last.
 *
 * @param describe what describes these bytes
 * @throws RangeError for an array without items, ClosedError, IpcError for a read-only array where
 * the driver cannot protect the memory
 */
export function exportArray<M extends IpcMemoryDescriptor>(
  array: DeviceArray,
  describe: (view: DeviceBuffer) => M,
): M {
  array.address; // a closed array is refused
  const { buffer, dtype, layout, readOnly } = array;
  const { low, high } = layoutExtents(layout);
  if (low === high) throw new RangeError('an array without items has no memory that can be shared');
  const view = buffer.subarray(low, high);
  // Who opens repeated items sees by the layout that they are not written to.
  const isProtected = readOnly && (isVirtual(view) || !hasRepeatedItems(layout));
  const described = { ...describe(isProtected ? view.readOnly() : view) };
  return withChecksum({ ...described, layout: describeLayout(dtype, layout) } as never) as M;
}

/** Whether the driver can map it without write access. */
const isVirtual = ({ keepalive, root }: DeviceBuffer): boolean =>
  keepalive instanceof VirtualMemory || importSourceOf(root)?.descriptor.kind === 'virtual';

/**
 * What was opened, as the array that its descriptor makes of it: closing that closes the mapping.
 *
 * @throws IpcError where the items reach beyond what was opened, which is closed then
 */
export function asArray<O>(opened: O, descriptor: IpcDescriptor, stream?: Stream): O | DeviceArray {
  if (!(opened instanceof DeviceBuffer) || descriptor.kind === 'event') return opened;
  try {
    const parsed = layoutOf(descriptor);
    if (!parsed) return opened;
    const { high } = layoutExtents(parsed.layout);
    if (high > opened.byteLength)
      throw new IpcError(
        `the items of an array of process ${descriptor.pid} take ${high} bytes, and the memory ` +
          `that it shared has ${opened.byteLength}`,
        undefined,
        'invalid-descriptor',
      );
    const readOnly = opened.access === 'read' || hasRepeatedItems(parsed.layout);
    return new DeviceArray({ buffer: opened, ...parsed, stream, isOwner: true, readOnly });
  } catch (error) {
    releaseOrWarn(() => opened.close());
    throw error;
  }
}
