/** Checks code to load: PTX text, a cubin or a fatbin. */
import { checkHostMemory, formatValue, type HostMemory } from '../validate.ts';

/** The source of a module: PTX as text, or PTX, a cubin or a fatbin as bytes. */
export type ModuleImage = string | HostMemory;

/** Code and its kind. */
export interface Image {
  readonly kind: 'PTX' | 'cubin' | 'fatbin';
  /** PTX ends with a zero byte. */
  readonly bytes: Uint8Array;
}

const ELF = 0x46_4c_45_7f;
const FATBIN = 0xba_55_ed_50;
const ELF_HEADER = 64;
const FATBIN_HEADER = 16;

/**
 * Checks the length of code. The driver trusts the sizes in its headers, and reads text up to the
 * zero byte: for truncated code it would read beyond the end.
 *
 * @throws TypeError, RangeError
 */
export function checkImage(source: ModuleImage): Image {
  if (typeof source === 'string') return checkText(Buffer.from(`${source}\0`));
  if (source === undefined || source === null || typeof source !== 'object')
    throw new TypeError(
      `source must be PTX as a string, or bytes of code, not ${formatValue(source)}`,
    );
  const bytes = checkHostMemory(source, 'source');
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const magic = bytes.length >= 4 ? view.getUint32(0, true) : 0;
  if (magic === ELF) return checkSize({ kind: 'cubin', bytes }, elfByteLength(view));
  if (magic === FATBIN) return checkSize({ kind: 'fatbin', bytes }, fatbinByteLength(view));
  return checkText(bytes);
}

/** Cuts text at its first zero byte, as the driver does. */
function checkText(text: Uint8Array): Image {
  const end = text.indexOf(0);
  const length = end < 0 ? text.length : end;
  if (!text.subarray(0, length).some(isVisible))
    throw new TypeError('source is neither text, a cubin nor a fatbin: nothing in it can be read');
  if (end >= 0) return { kind: 'PTX', bytes: text.subarray(0, length + 1) };
  const bytes = new Uint8Array(length + 1);
  bytes.set(text);
  return { kind: 'PTX', bytes };
}

/** Whether a byte of text is not white space. */
const isVisible = (byte: number): boolean => byte > 0x20;

function checkSize(image: Image, byteLength: number): Image {
  if (byteLength > image.bytes.length)
    throw new RangeError(
      `source is truncated: the ${image.kind} has ${byteLength} bytes, but only ${image.bytes.length} are given`,
    );
  return image;
}

/** The length of a cubin: its section and segment tables come last. */
function elfByteLength(view: DataView): number {
  if (view.byteLength < ELF_HEADER) return ELF_HEADER;
  const end = (offset: number, size: number, count: number): number =>
    Number(view.getBigUint64(offset, true)) +
    view.getUint16(size, true) * view.getUint16(count, true);
  return Math.max(end(32, 54, 56), end(40, 58, 60));
}

function fatbinByteLength(view: DataView): number {
  if (view.byteLength < FATBIN_HEADER) return FATBIN_HEADER;
  return view.getUint16(6, true) + Number(view.getBigUint64(8, true));
}
