import { closeFd } from '../../../ffi/libc.ts';
import { releaseQuietly } from '../../resource.ts';
import { discard, type ParcelSession, unpack } from '../parcel.ts';
import type { DecodedValue } from './decode.ts';

/** A value with its GPU objects, which belong to whoever takes it. */
export interface ReceivedValue {
  readonly value: unknown;
  readonly objects: readonly object[];
}

/**
 * Opens the GPU objects of a value. The file descriptors are taken over in every case.
 *
 * @throws IpcError for the first that cannot be opened; then none is
 */
export function openValue(
  { root, slots }: DecodedValue,
  fds: readonly number[],
  session: ParcelSession,
): ReceivedValue {
  const objects: object[] = [];
  let used = 0;
  try {
    for (const { holder, key, descriptor, fdCount } of slots) {
      const own = fds.slice(used, used + fdCount);
      used += fdCount;
      const object = unpack(descriptor, own, session);
      objects.push(object);
      holder[key] = object;
    }
  } catch (error) {
    fds.slice(used).forEach(closeFd);
    closeObjects(objects);
    throw error;
  }
  return { value: root.value, objects };
}

/** Closes what was opened for nobody. */
export function closeObjects(objects: readonly object[]): void {
  for (const object of objects) releaseQuietly(() => discard(object));
}
