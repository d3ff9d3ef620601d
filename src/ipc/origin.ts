/** Where imported objects came from, so that they can be passed on as what they came as. */
import type { DeviceBuffer } from '../memory/buffer.ts';
import { checkShared } from './access.ts';
import { type IpcDescriptor, type IpcMemoryDescriptor, sealDescriptor } from './descriptor.ts';
import type { Parcel } from './parcel.ts';

/** What an object was opened with: the descriptors are kept by the object. */
export interface Origin<D extends IpcDescriptor> {
  readonly descriptor: D;
  fds(): readonly number[];
}

// On the object itself: a WeakMap with an entry for each message would keep the collector busy.
const ORIGIN = Symbol('origin');

interface Imported {
  [ORIGIN]?: Origin<IpcDescriptor>;
}

export function rememberOrigin<D extends IpcDescriptor>(object: object, origin: Origin<D>): void {
  (object as Imported)[ORIGIN] = origin;
}

export const originOf = (object: object): Origin<IpcDescriptor> | undefined =>
  (object as Imported)[ORIGIN];

/** The descriptor that a buffer was opened with, cut down to what it is a view of. */
export function forwardBuffer(
  buffer: DeviceBuffer,
  { descriptor, fds }: Origin<IpcMemoryDescriptor>,
): Parcel {
  const { address, byteLength, access, whole } = buffer;
  checkShared(descriptor.kind, access);
  // Bytes have no layout, whatever they were a part of; and order is for whom it was made.
  const { layout: _, readyEvent: __, ...fields } = descriptor;
  const narrowed = {
    ...fields,
    byteOffset: descriptor.byteOffset + (address - whole.address),
    byteLength,
    access,
  };
  return { descriptor: sealDescriptor(narrowed as never), fds: fds() };
}
