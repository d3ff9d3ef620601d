/** A value that has arrived, and how its objects are opened. */

import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { isShortage, SystemError } from '../../../ffi/linux/libc.ts';
import { ClosedError, CuffiError, IpcError, prefixMessage } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import type { ImportTable } from '../lease/import-table.ts';
import type { FrameKind } from '../protocol.ts';
import { discardImported } from '../sharing/kinds.ts';
import { importFromPeer } from '../sharing/marshal.ts';
import type { TimelinePoint } from '../timeline/words.ts';
import type { Message } from '../wire/frames.ts';
import type { EncodedValue } from '../wire/value-decoder.ts';
import { formatPath, type Path, stepToEntry } from '../wire/value-encoder.ts';
import {
  type MessageSize,
  type ObjectTable,
  queuedSize,
  type ValueMessage,
} from '../wire/value-message.ts';
import type { Session } from './session.ts';

/** A value with its GPU objects. The caller that takes it owns them. */
export interface ReceivedValue {
  /** The value, whose plain data is built when it is taken. */
  readonly contents: Pick<EncodedValue, 'build' | 'value'>;
  readonly objects: readonly object[];
  /** Points of the peer's work that must be reached before the objects are used. */
  readonly points: readonly TimelinePoint[];
}

/** A received value, or the error in its place. */
export type Arrival = ReceivedValue | { readonly error: unknown };

/**
 * A message with a value that was checked. It owns the file descriptors that came with it, and the leases
 * of its objects, until it is opened or discarded.
 */
export class UnopenedMessage {
  readonly kind: FrameKind;
  /** The number of its request; 0 if it belongs to none. */
  readonly request: number;
  readonly contents: ValueMessage;
  readonly size: MessageSize;
  readonly #session: Session;
  readonly #shortage: SystemError | undefined;
  #fds: readonly number[];
  #isTaken = false;

  constructor(
    { kind, request, fds, bytes, shortage }: Message,
    contents: ValueMessage,
    session: Session,
  ) {
    this.kind = kind;
    this.request = request;
    this.contents = contents;
    this.size = queuedSize(bytes.byteLength, contents.objects.entries.length, fds.length);
    this.#session = session;
    this.#shortage = shortage;
    this.#fds = fds;
  }

  /**
   * Opens the GPU objects, or returns the error: it concerns the caller that takes the value, not the
   * connection. The error tells which object of the value could not be opened. What is not opened is
   * released. May be called once.
   *
   * @param refusal the reason to open nothing, which is then returned
   */
  open(refusal?: IpcError): Arrival {
    this.#isTaken = true;
    const reason = this.#shortage ? shortageError(this.#shortage) : refusal;
    return openObjects(this.contents, this.#fds, this.#session, reason);
  }

  /** Closes and releases what came with the message. Does nothing after {@link open}. */
  discard(): void {
    if (this.#isTaken) return;
    this.#isTaken = true;
    discardFds(this.#fds);
    const { firstLease, entries } = this.contents.objects;
    this.#session.imports.releaseAll(firstLease, entries.length);
  }
}

/** The error of a value whose file descriptors found no room here. */
const shortageError = (shortage: SystemError): IpcError =>
  new IpcError('the objects of a value were refused', shortage, 'limit-exceeded');

function openObjects(
  message: ValueMessage,
  fds: readonly number[],
  session: Session,
  refusal: IpcError | undefined,
): Arrival {
  const { value, objects: table, control } = message;
  const { imports } = session;
  const { firstLease, entries } = table;
  // Done before anything can fail: releasing a lease closes its link.
  const objectFds = refusal && fds.length === 0 ? fds : takeLinks(table, fds, imports);
  const objects: object[] = [];
  let used = 0;
  try {
    if (refusal) throw refusal;
    for (const { bytes, fdCount } of entries) {
      const lease = firstLease + objects.length;
      const descriptor = session.decodeDescriptor(bytes);
      const own = fdCount === objectFds.length ? objectFds : objectFds.slice(used, used + fdCount);
      used += fdCount;
      const object = importFromPeer(descriptor, own, session, imports.importLease(lease));
      imports.setOpened(lease, object);
      objects.push(object);
    }
    return { contents: value, objects, points: control.points };
  } catch (error) {
    closeObjects(objects);
    discardFds(objectFds.slice(used));
    for (let at = objects.length; at < entries.length; at++) imports.release(firstLease + at);
    return { error: refusal ?? withPath(error, message, objects.length) };
  }
}

/** Gives the links to the leases. Returns the other file descriptors. */
function takeLinks(
  { firstLease, entries }: ObjectTable,
  fds: readonly number[],
  imports: ImportTable,
): readonly number[] {
  if (!entries.some(({ hasLink }) => hasLink)) return fds;
  const others: number[] = [];
  let at = 0;
  for (const [index, { fdCount, hasLink }] of entries.entries()) {
    others.push(...fds.slice(at, at + fdCount));
    at += fdCount;
    if (!hasLink) continue;
    imports.addLink(firstLease + index, fds[at] as number);
    at += 1;
  }
  return others;
}

/** Adds to the error which object of the value could not be opened. */
function withPath(error: unknown, { value, objects }: ValueMessage, at: number): unknown {
  if (!(error instanceof CuffiError || error instanceof SystemError)) return error;
  const place = placeOf(value, at, objects.entries.length);
  // The system refuses what the peer has sent, or has nothing left for it.
  if (error instanceof SystemError)
    return new IpcError(
      `${place} cannot be opened`,
      error,
      isShortage(error) ? 'limit-exceeded' : 'no-file-descriptor',
    );
  if (error instanceof ClosedError)
    return new IpcError(
      `${place} is an object of this process, which came back after it was closed here`,
      error,
    );
  prefixMessage(error, place);
  return error;
}

/** The value is built only for the error message, so not if it is long. */
const MAX_SEARCHED_BYTE_LENGTH = 1 << 16;

/** Returns the path of an object in a value, e.g. `value.model.layers[3]`. */
function placeOf(value: EncodedValue, at: number, count: number): string {
  const unknown = `object ${at} of the value`;
  if (value.byteLength > MAX_SEARCHED_BYTE_LENGTH) return unknown;
  const places = Array.from({ length: count }, () => ({}));
  try {
    const path = pathTo(places[at] as object, value.buildAll(places), []);
    return path ? formatPath(path) : unknown;
  } catch {
    // A name occurs twice. That error needs no report, as the value is refused already.
    return unknown;
  }
}

function pathTo(wanted: object, part: unknown, path: Path): Path | undefined {
  if (part === wanted) return path;
  if (typeof part !== 'object' || part === null || ArrayBuffer.isView(part)) return undefined;
  for (const [step, inner] of partsOf(part)) {
    const found = pathTo(wanted, inner, [...path, step]);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** The parts of a decoded container, each with its step. */
function partsOf(container: object): readonly (readonly [Path[number], unknown])[] {
  if (Array.isArray(container)) return [...container.entries()];
  if (container instanceof Set)
    return [...container].map((member, at) => [{ call: 'values', key: at }, member]);
  if (container instanceof Map)
    return [...container].flatMap(([key, value], at) => [
      [{ call: 'keys', key: at }, key] as const,
      [stepToEntry(key, at), value] as const,
    ]);
  if (container instanceof Error)
    return ['errors', 'cause'].map((name) => [name, Reflect.get(container, name)]);
  return Object.entries(container);
}

/** Closes objects that nobody takes. */
export function closeObjects(objects: readonly object[]): void {
  for (const object of objects) releaseOrWarn(() => discardImported(object));
}
