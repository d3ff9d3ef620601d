import { closeFd } from '../../../ffi/libc.ts';
import { ClosedError, CuffiError, IpcError } from '../../errors.ts';
import { releaseQuietly } from '../../resource.ts';
import { discard, unpack } from '../parcel.ts';
import type { Point } from '../points/point.ts';
import type { DecodedValue, Slot } from './decode.ts';
import type { Session } from './session.ts';

/** A value with its GPU objects, which belong to whoever takes it. */
export interface ReceivedValue {
  readonly value: unknown;
  readonly objects: readonly object[];
  /** Points of the other end that the objects are used after. */
  readonly points: readonly Point[];
}

/** What arrived: a value, or why there is none in its place. */
export type Arrival = ReceivedValue | { readonly error: unknown };

/** As {@link openValue}: what cannot be opened here concerns those who take it, not the rest. */
export function openArrival(
  decoded: DecodedValue,
  fds: readonly number[],
  session: Session,
): Arrival {
  try {
    return openValue(decoded, fds, session);
  } catch (error) {
    return { error };
  }
}

/**
 * Opens the GPU objects of a value. The file descriptors are taken over in every case, and what is
 * not opened is given back.
 *
 * @throws IpcError for the first that cannot be opened; then none is
 */
function openValue(
  { root, slots, tail }: DecodedValue,
  fds: readonly number[],
  session: Session,
): ReceivedValue {
  const { borrowed } = session;
  // Received when the value arrived.
  const first = tail.leases?.first ?? 0;
  // Before anything can fail: what is not opened is given back by them.
  const ownCount = fds.length - tail.kept.length;
  for (const [at, slot] of tail.kept.entries())
    borrowed.keepLink(first + slot, fds[ownCount + at] as number);
  const own = ownCount === fds.length ? fds : fds.slice(0, ownCount);
  const objects: object[] = [];
  let used = 0;
  try {
    for (const { holder, key, descriptor, fdCount } of slots) {
      if (descriptor instanceof IpcError) throw descriptor;
      const its = fdCount === own.length ? own : own.slice(used, used + fdCount);
      used += fdCount;
      const id = first + objects.length;
      const object = unpack(descriptor, its, session, borrowed.loan(id));
      borrowed.opened(id, object);
      objects.push(object);
      holder[key] = object;
    }
  } catch (error) {
    own.slice(used).forEach(closeFd);
    closeObjects(objects);
    for (let at = objects.length; at < slots.length; at++) borrowed.giveBack(first + at);
    throw placed(error, root, slots[objects.length]);
  }
  return { value: root.value, objects, points: tail.points };
}

/** Says which object of the value it was that could not be opened. */
function placed(error: unknown, root: object, slot: Slot | undefined): unknown {
  const place = slot && placeOf(root, slot, '');
  if (place === undefined) return error;
  if (error instanceof ClosedError)
    return new IpcError(
      `${place} is an object of this process, which came back after it was closed here`,
      error,
    );
  if (error instanceof CuffiError) error.message = `${place}: ${error.message}`;
  return error;
}

/** Where in a value an object goes, e.g. `value.model.layers[3]`. */
function placeOf(part: object, slot: Slot, path: string): string | undefined {
  if (ArrayBuffer.isView(part)) return undefined;
  const step = (name: string | number): string => {
    if (Array.isArray(part)) return `${path}[${name}]`;
    return path === '' ? String(name) : `${path}.${name}`;
  };
  if (part === slot.holder) return step(slot.key);
  for (const [name, inner] of Object.entries(part)) {
    const isPart = typeof inner === 'object' && inner !== null;
    const found = isPart && placeOf(inner, slot, step(name));
    if (found) return found;
  }
  return undefined;
}

/** Closes what was opened for nobody. */
export function closeObjects(objects: readonly object[]): void {
  for (const object of objects) releaseQuietly(() => discard(object));
}
