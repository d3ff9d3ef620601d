/** Pieces of memory behind reserved addresses: made, mapped, shared, and given back. */
import { OUT0, readHandle, readInt32, writeStruct } from '../../ffi/arena.ts';
import {
  CU_MEM_ACCESS_FLAGS_PROT_READ,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  CU_MEM_LOCATION_TYPE_DEVICE,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { markForReading } from '../../ffi/fd-kind.ts';
import type { CUdeviceptr, CUmemGenericAllocationHandle } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import type { Device } from '../device.ts';
import { IpcError } from '../errors.ts';
import { releaseQuietly, tryAll } from '../lifetime.ts';
import { withRoom } from './allocate-with-retry.ts';
import type { Access } from './buffer.ts';
import { closeKeptFd, keepFd } from './context-fds.ts';
import { anchorExports, writeProperties } from './physical-memory.ts';

/** One piece of memory, mapped at an offset of the reservation. */
export interface Part {
  readonly address: CUdeviceptr;
  readonly byteLength: number;
  /** Undefined for one that came from another process: its mapping alone holds it. */
  readonly handle: CUmemGenericAllocationHandle | undefined;
  /** By which other processes open it, once it was shared or where it came from one. */
  fd: number | undefined;
  /** The same for reading, once it was shared so: a descriptor of its own, with a mark. */
  readFd?: number | undefined;
}

/** The memory behind pieces, in bytes. */
export const mappedBy = (parts: readonly Part[]): number =>
  parts.reduce((sum, { byteLength }) => sum + byteLength, 0);

/** Reserves addresses: nothing is behind them yet. */
export function reserveAddresses(byteLength: number): CUdeviceptr {
  check(
    cu.cuMemAddressReserve(OUT0, byteLength, 0, 0 as CUdeviceptr, 0),
    'cuMemAddressReserve',
    () => `reserving ${byteLength} bytes of addresses`,
  );
  return readHandle<CUdeviceptr>(OUT0, (exact) => cu.cuMemAddressFree(exact, byteLength));
}

/** Puts new memory of a device behind reserved addresses. @throws CudaError */
export function createPart(
  context: Context,
  address: CUdeviceptr,
  byteLength: number,
  shareable: boolean,
): Part {
  withRoom(context, 'cuMemCreate', byteLength, () =>
    cu.cuMemCreate(OUT0, byteLength, writeProperties(context.device, shareable), 0),
  );
  const handle = readHandle<CUmemGenericAllocationHandle>(OUT0, cu.cuMemRelease);
  const part: Part = { address, byteLength, handle, fd: undefined };
  let isMapped = false;
  try {
    mapPart(address, byteLength, handle);
    isMapped = true;
    allowDevice(part, context.device);
  } catch (error) {
    // Nobody was given the address yet: nothing uses it.
    releaseQuietly(() => {
      if (isMapped) unmapPart(context, part);
      else check(cu.cuMemRelease(handle), 'cuMemRelease');
    });
    throw error;
  }
  return part;
}

export function mapPart(
  address: CUdeviceptr,
  byteLength: number,
  handle: CUmemGenericAllocationHandle,
): void {
  check(
    cu.cuMemMap(address, byteLength, 0, handle, 0),
    'cuMemMap',
    () => `mapping ${byteLength} bytes`,
  );
}

/** Lets a device use a piece. */
export function allowDevice(
  { address, byteLength }: Pick<Part, 'address' | 'byteLength'>,
  device: Device,
  access: Access = 'read-write',
): void {
  const descriptor = writeStruct('CUmemAccessDesc', {
    'location.type': CU_MEM_LOCATION_TYPE_DEVICE,
    'location.id': device.handle,
    flags: access === 'read' ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  });
  check(
    cu.cuMemSetAccess(address, byteLength, descriptor, 1),
    'cuMemSetAccess',
    () => `giving ${device} access to ${byteLength} bytes`,
  );
}

/** Pieces of virtual memory as other processes may open them. */
export interface SharedPieces {
  /** 16 random bytes in hex: the memory's for life, and another one where it is shared for reading. */
  readonly id: string;
  /** Which of its pieces is the first of these. */
  readonly first: number;
  /** Where a range begins in the first, in bytes. */
  readonly byteOffset: number;
  /** Each with its descriptor, which stays the piece's. */
  readonly pieces: readonly { readonly byteLength: number; readonly fd: number }[];
}

/**
 * The pieces that a range lies in.
 *
 * @throws IpcError for more than `most`
 */
export function sharePieces(
  context: Context,
  parts: readonly Part[],
  from: CUdeviceptr,
  byteLength: number,
  most: number,
  access: Access,
): Omit<SharedPieces, 'id'> {
  const first = parts.findIndex((part) => part.address + part.byteLength > from);
  const touched = parts.slice(first).filter(({ address }) => address < from + byteLength);
  if (touched.length > most)
    throw new IpcError(
      `this range lies in ${touched.length} pieces, of which ${most} can be shared at once: grow in larger steps`,
    );
  const pieces = touched.map((part) => ({
    byteLength: part.byteLength,
    fd: exportPart(context, part, access),
  }));
  return { first, byteOffset: from - (touched[0]?.address ?? from), pieces };
}

/**
 * The descriptor by which other processes open a piece: made once for each access, closed with the
 * piece.
 */
function exportPart(context: Context, part: Part, access: Access): number {
  const name = access === 'read' ? 'readFd' : 'fd';
  const known = part[name];
  if (known !== undefined) return known;
  const { handle, byteLength } = part;
  if (handle === undefined) throw new TypeError('a piece of another process is not exported again');
  check(
    cu.cuMemExportToShareableHandle(OUT0, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
    'cuMemExportToShareableHandle',
    () => `sharing ${byteLength} bytes of virtual memory`,
  );
  const fd = keepFd(context, readInt32(OUT0));
  try {
    if (access === 'read') markForReading(fd);
  } catch (error) {
    closeKeptFd(context, fd);
    throw error;
  }
  part[name] = fd;
  anchorExports(context.device);
  return fd;
}

/** Takes a piece away; its memory goes with its last mapping and handle, whichever step fails. */
function unmapPart(context: Context, { address, byteLength, handle, fd, readFd }: Part): void {
  tryAll([
    () => fd !== undefined && closeKeptFd(context, fd),
    () => readFd !== undefined && closeKeptFd(context, readFd),
    () => check(cu.cuMemUnmap(address, byteLength), 'cuMemUnmap'),
    () => handle !== undefined && check(cu.cuMemRelease(handle), 'cuMemRelease'),
  ]);
}

/**
 * The driver takes back only what it gave: whole mappings, and the whole reservation. It keeps
 * addresses behind which a mapping is left, so trying is safe.
 */
export function unreserve(
  context: Context,
  address: CUdeviceptr,
  byteLength: number,
  parts: Part[],
): void {
  const unmaps = parts
    .splice(0)
    .reverse()
    .map((part) => () => unmapPart(context, part));
  const free = (): void => check(cu.cuMemAddressFree(address, byteLength), 'cuMemAddressFree');
  tryAll([...unmaps, free]);
}
