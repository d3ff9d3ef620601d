/** One object on its way to another process: what is said of it, and what goes beside that. */
import { closeFd } from '../../ffi/libc.ts';
import { IpcError } from '../errors.ts';
import { CudaEvent } from '../event.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import type { IpcDescriptor } from './descriptor.ts';
import { getIpcHandle } from './export.ts';
import { openIpcBuffer, openIpcEvent } from './import.ts';

/** What goes to another process for one object: plain data, and file descriptors beside it. */
export interface Parcel {
  readonly descriptor: IpcDescriptor;
  /** Borrowed: the sender keeps them open and does not close them. */
  readonly fds: readonly number[];
}

/** What two ends of one connection remember for each other, e.g. which pools the other end has. */
export interface ParcelSession {
  readonly sent: Set<string>;
  readonly received: Map<string, unknown>;
}

/**
 * What to send for an object; undefined for one that is not ours.
 *
 * @throws IpcError for one of ours that cannot be shared
 */
export function pack(object: object, _session: ParcelSession): Parcel | undefined {
  if (object instanceof DeviceBuffer) return { descriptor: handleOf(object), fds: [] };
  if (object instanceof CudaEvent) return { descriptor: getIpcHandle(object), fds: [] };
  return undefined;
}

// Of memory that cuffi allocated: what others own may be freed and be something else since.
const handles = new WeakMap<DeviceBuffer, IpcDescriptor>();

function handleOf(buffer: DeviceBuffer): IpcDescriptor {
  const known = buffer.closed ? undefined : handles.get(buffer);
  if (known) return known;
  const handle = getIpcHandle(buffer);
  if (buffer.origin === 'allocated') handles.set(buffer, handle);
  return handle;
}

/**
 * Opens what another process sent for one object. The descriptors belong to it from now on: it
 * closes those that it does not keep, also when it throws.
 *
 * @throws IpcError for anything but a sound descriptor with the descriptors that its kind has
 */
export function unpack(
  descriptor: unknown,
  fds: readonly number[],
  _session: ParcelSession,
): object {
  fds.forEach(closeFd);
  if (fds.length > 0) throw new IpcError(`${fds.length} file descriptors came that none needs`);
  return kindOf(descriptor) === 'event' ? openIpcEvent(descriptor) : openIpcBuffer(descriptor);
}

const kindOf = (descriptor: unknown): unknown =>
  typeof descriptor === 'object' && descriptor !== null && 'kind' in descriptor
    ? descriptor.kind
    : undefined;
