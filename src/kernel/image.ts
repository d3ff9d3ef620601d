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

// ---- Code that must be linked before its kernels can be found ----

/** Whether code must be linked into a program first, as the output of `nvcc -rdc=true`. */
export interface Linkage {
  /** Undefined if it cannot be told: a fatbin may be compressed. */
  readonly isRelocatable: boolean | undefined;
  /** The kernels of a relocatable cubin. */
  readonly kernels: readonly string[];
}

const COMPLETE: Linkage = { isRelocatable: false, kernels: [] };

const ELF_TYPE = 16;
const ET_REL = 1;
const ELF_MACHINE = 18;
/** x86-64 and AArch64. */
const CPU_MACHINES: readonly number[] = [62, 183];
const SHT_SYMTAB = 2;
const SYMBOL_BYTE_LENGTH = 24;
/** The bit of a symbol's st_other that marks a kernel. */
const STO_CUDA_ENTRY = 0x10;

const FATBIN_ELF = 2;
/** The flags of an entry that is compressed, by LZ4 or Zstandard. */
const FATBIN_COMPRESSED = 0x2000n | 0x8000n;
const FATBIN_ENTRY_HEADER = 64;

/** What a load makes of code: PTX is always linked by the driver. Never throws. */
export function linkageOf({ kind, bytes }: Image): Linkage {
  if (kind === 'PTX') return COMPLETE;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  try {
    return kind === 'cubin' ? linkageOfElf(view) : linkageOfFatbin(view);
  } catch {
    // Offsets of damaged code lead beyond it.
    return COMPLETE;
  }
}

/** What to do with code that is a part of a program. */
export const LINK_FIRST =
  'The code was compiled to be linked (nvcc -rdc=true): link it first: Module.load(link([code])).';

/** What to do about code that the driver did not load, by what it is; undefined if nothing is known. */
export function loadHint(image: Image, log: string): string | undefined {
  if (isHostObject(image))
    return 'It is an object file for the CPU (nvcc -c or -dc): compile with -cubin, -fatbin or -ptx.';
  if (linkageOf(image).isRelocatable) return LINK_FIRST;
  return /unresolved extern|undefined reference/i.test(log)
    ? 'It uses functions or variables of other code: link it with that, Module.load(link([code, other])).'
    : undefined;
}

const isHostObject = ({ kind, bytes }: Image): boolean =>
  kind === 'cubin' &&
  CPU_MACHINES.includes(new DataView(bytes.buffer, bytes.byteOffset).getUint16(ELF_MACHINE, true));

function linkageOfElf(view: DataView): Linkage {
  if (view.getUint16(ELF_TYPE, true) !== ET_REL) return COMPLETE;
  return { isRelocatable: true, kernels: kernelsOfElf(view) };
}

/** All entries come from the same compilation. Those with PTX tell nothing: they are for other devices. */
function linkageOfFatbin(view: DataView): Linkage {
  const end = fatbinByteLength(view);
  let linkage = COMPLETE;
  for (let at = view.getUint16(6, true); at + FATBIN_ENTRY_HEADER <= end; ) {
    const headerByteLength = view.getUint32(at + 4, true);
    const byteLength = Number(view.getBigUint64(at + 8, true));
    if (headerByteLength < FATBIN_ENTRY_HEADER) break;
    if (view.getUint16(at, true) === FATBIN_ELF) {
      const isCompressed = (view.getBigUint64(at + 40, true) & FATBIN_COMPRESSED) !== 0n;
      const start = view.byteOffset + at + headerByteLength;
      if (!isCompressed) return linkageOfElf(new DataView(view.buffer, start, byteLength));
      linkage = { isRelocatable: undefined, kernels: [] };
    }
    at += headerByteLength + byteLength;
  }
  return linkage;
}

function kernelsOfElf(view: DataView): readonly string[] {
  const tableAt = Number(view.getBigUint64(40, true));
  const [entryByteLength, count] = [view.getUint16(58, true), view.getUint16(60, true)];
  const section = (n: number) => {
    const at = tableAt + n * entryByteLength;
    return {
      type: view.getUint32(at + 4, true),
      at: Number(view.getBigUint64(at + 24, true)),
      byteLength: Number(view.getBigUint64(at + 32, true)),
      link: view.getUint32(at + 40, true),
    };
  };
  const kernels: string[] = [];
  for (let n = 0; n < count; n += 1) {
    const symbols = section(n);
    if (symbols.type !== SHT_SYMTAB) continue;
    const names = section(symbols.link);
    for (let at = symbols.at; at < symbols.at + symbols.byteLength; at += SYMBOL_BYTE_LENGTH)
      if ((view.getUint8(at + 5) & STO_CUDA_ENTRY) !== 0)
        kernels.push(textAt(view, names.at + view.getUint32(at, true)));
  }
  return kernels;
}

/** Zero-terminated text. */
function textAt(view: DataView, start: number): string {
  let end = start;
  while (view.getUint8(end) !== 0) end += 1;
  return Buffer.from(view.buffer, view.byteOffset + start, end - start).toString();
}
