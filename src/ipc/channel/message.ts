/** What a message is besides the bytes of its slot: the layout of its items, and data of the user. */

import { checkShape, type Shape, sizeOf } from '../../array/shape.ts';
import { type Dtype, dtype as dtypeNamed } from '../../dtype.ts';
import { IpcError } from '../../errors.ts';
import { formatBytes, formatValue } from '../../validate.ts';
import {
  MAX_AXES,
  MAX_META_BYTE_LENGTH,
  RECORD_BYTE_LENGTH,
  RecordFlag,
  RecordOffset,
} from '../protocol.ts';

/** How the items of a message lie in its slot, in C order from its first byte. */
export interface MessageLayout<D extends Dtype = Dtype> {
  readonly shape: Shape;
  readonly dtype: D;
}

/** A message as its record has it. */
export interface MessageRecord {
  /** Undefined for the layout of the channel. */
  readonly layout?: MessageLayout | undefined;
  readonly meta?: unknown;
  /** Whether the producer gave the slot back without a message. */
  readonly isSkipped?: boolean;
}

/**
 * Returns `meta` as JSON.
 *
 * @throws TypeError for what JSON cannot hold, RangeError for more than 1 KiB
 */
export function encodeMeta(meta: unknown): Uint8Array {
  if (meta === undefined) return NOTHING;
  let text: string | undefined;
  try {
    text = JSON.stringify(meta);
  } catch (error) {
    throw new TypeError(`meta cannot be written as JSON: ${(error as Error).message}`, {
      cause: error,
    });
  }
  if (text === undefined)
    throw new TypeError(`meta must be a value that JSON can hold, not ${formatValue(meta)}`);
  const bytes = Buffer.from(text);
  if (bytes.byteLength > MAX_META_BYTE_LENGTH)
    throw new RangeError(
      `meta takes ${formatBytes(bytes.byteLength)} as JSON: at most ${formatBytes(MAX_META_BYTE_LENGTH)} are allowed`,
    );
  return bytes;
}

/** Returns a checked layout. @throws TypeError, RangeError if it does not fit into a slot */
export function checkLayout(
  { shape, dtype }: MessageLayout | { shape: number | Shape; dtype: Dtype | string },
  byteLength: number,
): MessageLayout {
  const checked = Object.freeze(checkShape(typeof shape === 'number' ? [shape] : shape));
  const type = dtypeNamed(dtype);
  const needed = sizeOf(checked) * type.itemsize;
  if (needed > byteLength)
    throw new RangeError(
      `an array of ${formatBytes(needed)} does not fit into a slot of ${formatBytes(byteLength)}`,
    );
  return { shape: checked, dtype: type };
}

/**
 * As {@link checkLayout}, for a layout of another process, which writes a dtype by its only name.
 *
 * @throws TypeError, RangeError
 */
function checkReceivedLayout(
  layout: { shape: Shape; dtype: string },
  byteLength: number,
): MessageLayout {
  const checked = checkLayout(layout, byteLength);
  const { name } = checked.dtype;
  if (name !== layout.dtype)
    throw new TypeError(`the dtype is called ${name}, not ${layout.dtype}`);
  return checked;
}

// ---- The record in the ring ----

const NOTHING = new Uint8Array(0);
/** Throws for bytes that are not UTF-8. */
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Writes a record. @param meta as {@link encodeMeta} returns it */
export function writeRecord(
  record: Uint8Array,
  { layout, isSkipped }: MessageRecord,
  meta: Uint8Array = NOTHING,
): void {
  const view = new DataView(record.buffer, record.byteOffset, RECORD_BYTE_LENGTH);
  view.setUint32(
    RecordOffset.flags,
    (isSkipped ? RecordFlag.skipped : 0) | (layout ? RecordFlag.layout : 0),
    true,
  );
  view.setUint32(RecordOffset.metaByteLength, meta.byteLength, true);
  record.set(meta, RecordOffset.meta);
  if (!layout) return;
  view.setUint32(RecordOffset.ndim, layout.shape.length, true);
  record.fill(0, RecordOffset.dtype, RecordOffset.shape);
  record.set(Buffer.from(layout.dtype.name, 'latin1'), RecordOffset.dtype);
  for (const [axis, length] of layout.shape.entries())
    view.setBigInt64(RecordOffset.shape + 8 * axis, BigInt(length), true);
}

/** Reads a record. @param byteLength that of a slot @throws IpcError for anything invalid */
export function readRecord(record: Uint8Array, byteLength: number): MessageRecord {
  // Once, as another process may change it meanwhile.
  const bytes = record.slice();
  const view = new DataView(bytes.buffer, bytes.byteOffset, RECORD_BYTE_LENGTH);
  const flags = view.getUint32(RecordOffset.flags, true);
  if ((flags & RecordFlag.skipped) !== 0) return { isSkipped: true };
  try {
    return {
      layout: (flags & RecordFlag.layout) === 0 ? undefined : readLayout(view, bytes, byteLength),
      meta: readMeta(view, bytes),
    };
  } catch (error) {
    throw new IpcError('received a message whose record is invalid', error as Error);
  }
}

function readLayout(view: DataView, bytes: Uint8Array, byteLength: number): MessageLayout {
  const ndim = view.getUint32(RecordOffset.ndim, true);
  if (ndim > MAX_AXES) throw new RangeError(`it has ${ndim} axes, of at most ${MAX_AXES}`);
  const shape = Array.from({ length: ndim }, (_, axis) =>
    Number(view.getBigInt64(RecordOffset.shape + 8 * axis, true)),
  );
  const name = Buffer.from(bytes.subarray(RecordOffset.dtype, RecordOffset.shape)).toString(
    'latin1',
  );
  return checkReceivedLayout({ shape, dtype: name.replace(/\0+$/, '') }, byteLength);
}

function readMeta(view: DataView, bytes: Uint8Array): unknown {
  const length = view.getUint32(RecordOffset.metaByteLength, true);
  if (length === 0) return undefined;
  if (length > MAX_META_BYTE_LENGTH)
    throw new RangeError(`its meta has ${length} bytes, of at most ${MAX_META_BYTE_LENGTH}`);
  return JSON.parse(utf8.decode(bytes.subarray(RecordOffset.meta, RecordOffset.meta + length)));
}
