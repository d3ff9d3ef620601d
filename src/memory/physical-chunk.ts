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
import { releaseOrWarn, runAll } from '../lifetime.ts';
import { allocateWithRetry } from './allocate-with-retry.ts';
import type { Access } from './buffer.ts';
import { addContextFd, closeContextFd } from './context-fds.ts';
import { ensureKeepaliveAllocation, writeAllocationProperties } from './physical-memory.ts';

/** One piece of memory, mapped at an offset of the reservation. */
export interface PhysicalChunk {
  readonly address: CUdeviceptr;
  readonly byteLength: number;
  /** Undefined for one that came from another process: its mapping alone holds it. */
  readonly handle: CUmemGenericAllocationHandle | undefined;
  /** By which other processes open it, once it was shared or where it came from one. */
  fd: number | undefined;
  /** The same for reading, once it was shared so: a descriptor of its own, with a mark. */
  readOnlyFd?: number | undefined;
}

/** The memory behind pieces, in bytes. */
export const totalByteLength = (chunks: readonly PhysicalChunk[]): number =>
  chunks.reduce((sum, { byteLength }) => sum + byteLength, 0);

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
export function createChunk(
  context: Context,
  address: CUdeviceptr,
  byteLength: number,
  shareable: boolean,
): PhysicalChunk {
  allocateWithRetry(context, 'cuMemCreate', byteLength, () =>
    cu.cuMemCreate(OUT0, byteLength, writeAllocationProperties(context.device, shareable), 0),
  );
  const handle = readHandle<CUmemGenericAllocationHandle>(OUT0, cu.cuMemRelease);
  const chunk: PhysicalChunk = { address, byteLength, handle, fd: undefined };
  let isMapped = false;
  try {
    mapChunk(address, byteLength, handle);
    isMapped = true;
    allowAccess(chunk, context.device);
  } catch (error) {
    // Nobody was given the address yet: nothing uses it.
    releaseOrWarn(() => {
      if (isMapped) unmapChunk(context, chunk);
      else check(cu.cuMemRelease(handle), 'cuMemRelease');
    });
    throw error;
  }
  return chunk;
}

export function mapChunk(
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
export function allowAccess(
  { address, byteLength }: Pick<PhysicalChunk, 'address' | 'byteLength'>,
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
export interface SharedChunks {
  /** 16 random bytes in hex: the memory's for life, and another one where it is shared for reading. */
  readonly id: string;
  /** Which of its pieces is the first of these. */
  readonly firstChunk: number;
  /** Where a range begins in the first, in bytes. */
  readonly byteOffset: number;
  /** Each with its descriptor, which stays the piece's. */
  readonly chunks: readonly { readonly byteLength: number; readonly fd: number }[];
}

/**
 * The pieces that a range lies in.
 *
 * @throws IpcError for more than `most`
 */
export function shareChunks(
  context: Context,
  chunks: readonly PhysicalChunk[],
  start: CUdeviceptr,
  byteLength: number,
  maxChunks: number,
  access: Access,
): Omit<SharedChunks, 'id'> {
  const firstChunk = chunks.findIndex((part) => part.address + part.byteLength > start);
  const overlapping = chunks
    .slice(firstChunk)
    .filter(({ address }) => address < start + byteLength);
  if (overlapping.length > maxChunks)
    throw new IpcError(
      `this range lies in ${overlapping.length} pieces, of which ${maxChunks} can be shared at once: grow in larger steps`,
    );
  const pieces = overlapping.map((part) => ({
    byteLength: part.byteLength,
    fd: exportChunk(context, part, access),
  }));
  return { firstChunk, byteOffset: start - (overlapping[0]?.address ?? start), chunks: pieces };
}

/**
 * The descriptor by which other processes open a piece: made once for each access, closed with the
 * piece.
 */
function exportChunk(context: Context, chunk: PhysicalChunk, access: Access): number {
  const name = access === 'read' ? 'readOnlyFd' : 'fd';
  const known = chunk[name];
  if (known !== undefined) return known;
  const { handle, byteLength } = chunk;
  if (handle === undefined) throw new TypeError('a piece of another process is not exported again');
  check(
    cu.cuMemExportToShareableHandle(OUT0, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
    'cuMemExportToShareableHandle',
    () => `sharing ${byteLength} bytes of virtual memory`,
  );
  const fd = addContextFd(context, readInt32(OUT0));
  try {
    if (access === 'read') markForReading(fd);
  } catch (error) {
    closeContextFd(context, fd);
    throw error;
  }
  chunk[name] = fd;
  ensureKeepaliveAllocation(context.device);
  return fd;
}

/** Takes a piece away; its memory goes with its last mapping and handle, whichever step fails. */
function unmapChunk(
  context: Context,
  { address, byteLength, handle, fd, readOnlyFd }: PhysicalChunk,
): void {
  runAll([
    () => fd !== undefined && closeContextFd(context, fd),
    () => readOnlyFd !== undefined && closeContextFd(context, readOnlyFd),
    () => check(cu.cuMemUnmap(address, byteLength), 'cuMemUnmap'),
    () => handle !== undefined && check(cu.cuMemRelease(handle), 'cuMemRelease'),
  ]);
}

/**
 * The driver takes back only what it gave: whole mappings, and the whole reservation. It keeps
 * addresses behind which a mapping is left, so trying is safe.
 */
export function freeReservation(
  context: Context,
  address: CUdeviceptr,
  byteLength: number,
  chunks: PhysicalChunk[],
): void {
  const unmaps = chunks
    .splice(0)
    .reverse()
    .map((part) => () => unmapChunk(context, part));
  const free = (): void => check(cu.cuMemAddressFree(address, byteLength), 'cuMemAddressFree');
  runAll([...unmaps, free]);
}
