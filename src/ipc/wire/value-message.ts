/**
 * A message with a value: the value, then the table of its objects, then a control block. The table
 * says what comes with each object; a value without objects has none.
 */

import type { DiagnosticMessages } from '../../diagnostics.ts';
import { IpcError } from '../../errors.ts';
import { formatBytes } from '../../validate.ts';
import { ByteReader, type ByteWriter } from '../bytes.ts';
import {
  FrameKind,
  MAX_CONTROL_BYTE_LENGTH,
  MAX_OBJECT_BYTE_LENGTH,
  MAX_TABLE_BYTE_LENGTH,
  MAX_VALUE_BYTE_LENGTH,
} from '../protocol.ts';
import { type ControlBlock, readControlBlock, readLeaseId } from './control-block.ts';
import { limitExceeded, QUEUED_OBJECT_BYTE_LENGTH } from './limits.ts';
import { EncodedValue } from './value-decoder.ts';

/** What comes with an object of a value. */
export interface ObjectEntry {
  /** The description of the object. Valid until the next message. */
  readonly bytes: Uint8Array;
  /** How many file descriptors are its own. They come in the order of the table. */
  readonly fdCount: number;
  /** Whether a link to its owner comes behind those: another process has forwarded the object. */
  readonly hasLink: boolean;
}

/** The table of objects of one value. */
export interface ObjectTable {
  /** The sender's lease for the first object. The others have the numbers behind it. */
  readonly firstLease: number;
  readonly entries: readonly ObjectEntry[];
}

/** Writes the table of a value that has objects. */
export function writeObjectTable(to: ByteWriter, { firstLease, entries }: ObjectTable): void {
  to.limit(MAX_TABLE_BYTE_LENGTH, tableTooLarge);
  to.float64(firstLease);
  for (const { bytes, fdCount, hasLink } of entries) {
    to.length(fdCount);
    to.uint8(hasLink ? 1 : 0);
    to.length(bytes.byteLength);
    to.bytes(bytes);
  }
}

const tableTooLarge = (): RangeError =>
  new RangeError(
    `the GPU objects of the value need more than ${formatBytes(MAX_TABLE_BYTE_LENGTH)} to describe them: ` +
      'send fewer at a time',
  );

/** A message whose value was checked. Nothing of it is opened, and a long value is not built. */
export interface ValueMessage {
  readonly value: EncodedValue;
  readonly objects: ObjectTable;
  readonly control: ControlBlock;
}

/** Checks a message with a value, over several turns of the event loop if it is long. */
export class ValueMessageReader {
  readonly #from: ByteReader;
  readonly #value: EncodedValue;

  constructor(bytes: Uint8Array) {
    this.#from = new ByteReader(bytes);
    this.#value = new EncodedValue(this.#from);
  }

  /**
   * Checks for at most a few milliseconds. Returns undefined if it must be called again, in a later
   * turn of the event loop.
   *
   * @param fdCount how many file descriptors came with the message; undefined if they are lost
   * @throws IpcError for anything but one whole message
   */
  read(fdCount: number | undefined): ValueMessage | undefined {
    const value = this.#value;
    const from = this.#from;
    if (!value.check()) return undefined;
    if (value.byteLength > MAX_VALUE_BYTE_LENGTH)
      throw limitExceeded(
        `a value of ${formatBytes(value.byteLength)} is too large: at most ${MAX_VALUE_BYTE_LENGTH} are allowed`,
      );
    const objects = value.objectCount > 0 ? readObjectTable(from, value.objectCount) : noObjects;
    if (from.remaining > MAX_CONTROL_BYTE_LENGTH)
      throw limitExceeded(
        `a control block of ${formatBytes(from.remaining)} is too large: at most ${MAX_CONTROL_BYTE_LENGTH} are allowed`,
      );
    const control = readControlBlock(from);
    const { hasTimelinePage, isClosing, isDone, forwardRequests, begun } = control;
    if (hasTimelinePage || isClosing || isDone || forwardRequests.length > 0 || begun !== 0)
      throw new IpcError('received parts of a control message with a value');
    let expected = 0;
    for (const { fdCount: own, hasLink } of objects.entries) expected += own + (hasLink ? 1 : 0);
    if (fdCount !== undefined && expected !== fdCount)
      throw new IpcError(`received ${fdCount} file descriptors with a value that has ${expected}`);
    return { value, objects, control };
  }
}

const noObjects: ObjectTable = { firstLease: 0, entries: [] };

function readObjectTable(from: ByteReader, count: number): ObjectTable {
  const begin = from.offset;
  const firstLease = readLeaseId(from);
  if (!Number.isSafeInteger(firstLease + count))
    throw new IpcError(`${count} leases from ${firstLease} on is not a valid range for one value`);
  const entries: ObjectEntry[] = [];
  for (let at = 0; at < count; at++) {
    const fdCount = from.length(0);
    const flag = from.uint8();
    if (flag > 1)
      throw new IpcError(`invalid flag ${flag} in a table of objects: it must be 0 or 1`);
    const byteLength = from.length();
    if (byteLength > MAX_OBJECT_BYTE_LENGTH)
      throw limitExceeded(`a descriptor of ${byteLength} bytes is too long`);
    entries.push({ fdCount, hasLink: flag === 1, bytes: from.view(byteLength) });
    if (from.offset - begin > MAX_TABLE_BYTE_LENGTH)
      throw limitExceeded(
        `the table of objects is too long: at most ${formatBytes(MAX_TABLE_BYTE_LENGTH)} are allowed`,
      );
  }
  return { firstLease, entries };
}

// ---- What is said of a message ----

/** What a message counts toward the limits. */
export interface MessageSize {
  readonly byteLength: number;
  /** How many file descriptors came with it. */
  readonly fdCount: number;
}

/** What a message is, in the words of the protocol. */
export const typeOfMessage = (kind: FrameKind): DiagnosticMessages['cuffi:peer:send']['type'] =>
  TYPES.get(kind) as DiagnosticMessages['cuffi:peer:send']['type'];

const TYPES = new Map<FrameKind, string>(
  Object.entries(FrameKind).map(([name, kind]) => [kind, name]),
);

/** How much a message counts for in the queue of its receiver, and among the requests that are pending. */
export const queuedSize = (byteLength: number, objects: number, fdCount: number): MessageSize => ({
  byteLength: byteLength + objects * QUEUED_OBJECT_BYTE_LENGTH,
  fdCount,
});
