/** The code that a module is loaded from: PTX text, or a cubin whose kernels have stand-ins here. */
import { emulatedByteLength, type RegisteredKernel } from '../emulated-kernels.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { HostMemory } from './host.ts';
import { type PtxEntry, type PtxGlobal, parsePtx } from './ptx.ts';

/** What a module is made of. */
export interface Image {
  readonly entries: readonly PtxEntry[];
  readonly globals: readonly PtxGlobal[];
  /** The architecture that the code was written for, e.g. 70. */
  readonly target: number;
}

/** Why an image cannot be loaded, and what the compiler says of it. */
export interface ImageError {
  readonly status: Status;
  readonly log: string;
}

const PAGE = 4096;
const MAX_IMAGE_BYTES = 1 << 26;
const ELF = 0x46_4c_45_7f;
const FATBIN = 0xba_55_ed_50;

// The newest that the emulated driver's version, 13.0, takes.
const MAX_VERSION = 90;

/** The image at an address of host memory. */
export function readImage(
  host: HostMemory,
  address: number,
  kernels: ReadonlyMap<string, RegisteredKernel>,
): Image | ImageError {
  const magic = host.getInt32(address);
  if (magic === undefined) return { status: CUresult.CUDA_ERROR_INVALID_VALUE, log: '' };
  if (magic === ELF) return readCubin(host, address, kernels);
  if (magic >>> 0 === FATBIN) return { status: CUresult.CUDA_ERROR_NOT_SUPPORTED, log: '' };
  const ptx = parsePtx(readText(host, address));
  if (!ptx) return { status: CUresult.CUDA_ERROR_INVALID_IMAGE, log: '' };
  if (ptx.version > MAX_VERSION)
    return {
      status: CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
      log: `fatal   : Unsupported .version ${ptx.version / 10}; current version is '9.0'`,
    };
  if (ptx.error) return { status: CUresult.CUDA_ERROR_INVALID_PTX, log: ptx.error };
  return ptx;
}

/** Text up to its zero byte. */
function readText(host: HostMemory, address: number): string {
  const parts: Uint8Array[] = [];
  // Up to the end of a page at a time: the next one may not be mapped.
  for (let at = address; at < address + MAX_IMAGE_BYTES; ) {
    const piece = host.read(at, PAGE - (at % PAGE));
    const end = piece?.indexOf(0) ?? -1;
    if (!piece || end >= 0) {
      parts.push(piece?.subarray(0, end) ?? new Uint8Array());
      break;
    }
    parts.push(piece);
    at += piece.length;
  }
  return Buffer.concat(parts).toString('utf8');
}

/** A cubin has a section for each kernel; which of them are registered is all that is asked. */
function readCubin(
  host: HostMemory,
  address: number,
  kernels: ReadonlyMap<string, RegisteredKernel>,
): Image | ImageError {
  const header = Buffer.from(host.read(address, 64) ?? []);
  const byteLength =
    header.length === 64
      ? Number(header.readBigUInt64LE(40)) + header.readUInt16LE(58) * header.readUInt16LE(60)
      : 0;
  const bytes = Buffer.from((byteLength < MAX_IMAGE_BYTES && host.read(address, byteLength)) || []);
  const entries = [...kernels]
    .filter(([name]) => bytes.includes(`.text.${name}\0`))
    .map(([name, { params }]) => ({
      name,
      params: params.map(emulatedByteLength),
      maxThreads: undefined,
    }));
  if (entries.length === 0) return { status: CUresult.CUDA_ERROR_NOT_SUPPORTED, log: '' };
  return { entries, globals: [], target: 90 };
}
