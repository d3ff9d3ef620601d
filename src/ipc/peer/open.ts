import { discardFds } from '../../../ffi/discard.ts';
import { IpcError } from '../../errors.ts';
import { releaseQuietly } from '../../resource.ts';
import { discard, unpack } from '../parcel.ts';
import type { Point } from '../points/point.ts';
import type { DecodedValue } from './decode.ts';
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
  const first = borrowed.number(slots.length);
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
    discardFds(own.slice(used));
    closeObjects(objects);
    for (let at = objects.length; at < slots.length; at++) borrowed.giveBack(first + at);
    throw error;
  }
  return { value: root.value, objects, points: tail.points };
}

/** Closes what was opened for nobody. */
export function closeObjects(objects: readonly object[]): void {
  for (const object of objects) releaseQuietly(() => discard(object));
}
