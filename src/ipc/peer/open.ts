import { closeFd } from '../../../ffi/libc.ts';
import { IpcError } from '../../errors.ts';
import { releaseQuietly } from '../../resource.ts';
import { discard, unpack } from '../parcel.ts';
import type { Point } from '../points/point.ts';
import type { Contents, ScannedValue } from './decode.ts';
import type { Session } from './session.ts';

/** A value with its GPU objects, which belong to whoever takes it. */
export interface ReceivedValue {
  /** The value, of which the plain data is built when it is taken. */
  readonly contents: Pick<Contents, 'build' | 'value'>;
  readonly objects: readonly object[];
  /** Points of the other end that the objects are used after. */
  readonly points: readonly Point[];
}

/** What arrived: a value, or why there is none in its place. */
export type Arrival = ReceivedValue | { readonly error: unknown };

/**
 * As {@link openValue}: what cannot be opened here concerns those who take it, not the rest.
 *
 * @param refusal why nothing is opened; what came is then returned
 */
export function openArrival(
  scanned: ScannedValue,
  fds: readonly number[],
  session: Session,
  refusal?: IpcError,
): Arrival {
  try {
    return openValue(scanned, fds, session, refusal);
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
  { contents, slots, tail }: ScannedValue,
  fds: readonly number[],
  session: Session,
  refusal: IpcError | undefined,
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
    if (refusal) throw refusal;
    for (const { descriptor, fdCount } of slots) {
      if (descriptor instanceof IpcError) throw descriptor;
      const its = fdCount === own.length ? own : own.slice(used, used + fdCount);
      used += fdCount;
      const id = first + objects.length;
      const object = unpack(descriptor, its, session, borrowed.loan(id));
      borrowed.opened(id, object);
      objects.push(object);
    }
  } catch (error) {
    own.slice(used).forEach(closeFd);
    closeObjects(objects);
    for (let at = objects.length; at < slots.length; at++) borrowed.giveBack(first + at);
    throw error;
  }
  return { contents, objects, points: tail.points };
}

/** Closes what was opened for nobody. */
export function closeObjects(objects: readonly object[]): void {
  for (const object of objects) releaseQuietly(() => discard(object));
}
