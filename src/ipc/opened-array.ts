import { DeviceArray } from '../array/device-array.ts';
import { extents } from '../array/layout.ts';
import { repeatsItems } from '../array/overlap.ts';
import { IpcError } from '../errors.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { releaseQuietly } from '../resource.ts';
import type { Stream } from '../stream.ts';
import type { IpcDescriptor } from './descriptor.ts';
import { layoutOf } from './descriptor-layout.ts';

/**
 * What was opened, as the array that its descriptor makes of it: closing that closes the mapping.
 *
 * @throws IpcError where the items reach beyond what was opened, which is closed then
 */
export function asArray<O>(opened: O, descriptor: IpcDescriptor, stream?: Stream): O | DeviceArray {
  if (!(opened instanceof DeviceBuffer) || descriptor.kind === 'event') return opened;
  try {
    const named = layoutOf(descriptor);
    if (!named) return opened;
    const { high } = extents(named.layout);
    if (high > opened.byteLength)
      throw new IpcError(
        `the items of an array of process ${descriptor.pid} take ${high} bytes, and the memory ` +
          `that it shared has ${opened.byteLength}`,
        undefined,
        'no-descriptor',
      );
    const readOnly = opened.access === 'read' || repeatsItems(named.layout);
    return new DeviceArray({ buffer: opened, ...named, stream, isOwner: true, readOnly });
  } catch (error) {
    releaseQuietly(() => opened.close());
    throw error;
  }
}
