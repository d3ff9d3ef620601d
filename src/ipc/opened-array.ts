import { DeviceArray } from '../array/device-array.ts';
import { repeatsItems } from '../array/overlap.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import type { Stream } from '../stream.ts';
import type { IpcDescriptor } from './descriptor.ts';
import { layoutOf } from './descriptor-layout.ts';

/** What was opened, as the array that its descriptor makes of it: closing that closes the mapping. */
export function asArray<O>(opened: O, descriptor: IpcDescriptor, stream?: Stream): O | DeviceArray {
  if (!(opened instanceof DeviceBuffer) || descriptor.kind === 'event') return opened;
  const named = layoutOf(descriptor);
  if (!named) return opened;
  const readOnly = opened.access === 'read' || repeatsItems(named.layout);
  return new DeviceArray({ buffer: opened, ...named, stream, isOwner: true, readOnly });
}
