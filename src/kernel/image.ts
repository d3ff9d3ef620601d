/** Code to load: PTX text, a cubin or a fatbin, made safe to hand to the driver. */
import { checkHostMemory, formatValue, type HostMemory } from '../validate.ts';

/** What a module is loaded from: PTX as text, or PTX, a cubin or a fatbin as bytes. */
export type ModuleImage = string | HostMemory;

/** Code, and what it is. */
export interface Image {
  readonly kind: 'PTX' | 'cubin' | 'fatbin';
  /** Ends with a zero byte, where it is text. */
  readonly bytes: Uint8Array;
}

const ELF = 0x46_4c_45_7f;
const FATBIN = 0xba_55_ed_50;
const ELF_HEADER = 64;
const FATBIN_HEADER = 16;

/**
 * The driver believes the sizes that code tells of itself, and reads text up to its zero byte: what
 * is shorter than it says is refused here.
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

/** Up to its first zero byte, as the driver reads it. */
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

/** Whether a byte of text is anything but white space. */
const isVisible = (byte: number): boolean => byte > 0x20;

function checkSize(image: Image, byteLength: number): Image {
  if (byteLength > image.bytes.length)
    throw new RangeError(
      `source is cut off: the ${image.kind} has ${byteLength} bytes, and ${image.bytes.length} are here`,
    );
  return image;
}

/** Up to the end of the tables of sections and of segments, the last things in a cubin. */
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
