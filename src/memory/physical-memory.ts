/** Physical memory, in chunks; and the file descriptors by which it and pools are shared. */
import { OUT0, readHandle, readInt32, readSize, writeStruct } from '../../ffi/arena.ts';
import {
  CU_MEM_ACCESS_FLAGS_PROT_READ,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  CU_MEM_ALLOC_GRANULARITY_MINIMUM,
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEM_HANDLE_TYPE_NONE,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  CU_MEM_LOCATION_TYPE_DEVICE,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { discardFd } from '../../ffi/linux/close-fd.ts';
import { duplicateFd, setCloseOnExec } from '../../ffi/linux/libc.ts';
import { markReadOnly } from '../../ffi/memory-fd.ts';
import type { CUresult } from '../../ffi/results.ts';
import type { Address, CUdeviceptr, CUmemGenericAllocationHandle } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import type { Device } from '../device.ts';
import { IpcError, NotSupportedError } from '../errors.ts';
import { releaseOrWarn, runAll } from '../lifetime.ts';
import { formatBytes } from '../validate.ts';
import { allocateWithRetry } from './allocate-with-retry.ts';
import type { Access, DeviceAccess } from './buffer.ts';

/** Writes the properties of device memory to create. Returns the address of the struct. */
const writeAllocationProperties = (device: Device, shareable: boolean): Address =>
  writeStruct('CUmemAllocationProp', {
    type: CU_MEM_ALLOCATION_TYPE_PINNED,
    requestedHandleTypes: shareable
      ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
      : CU_MEM_HANDLE_TYPE_NONE,
    'location.type': CU_MEM_LOCATION_TYPE_DEVICE,
    'location.id': device.handle,
  });

/** The granularity of a device's virtual memory: all sizes are multiples of it. */
export function allocationGranularity(device: Device, shareable: boolean): number {
  check(
    cu.cuMemGetAllocationGranularity(
      OUT0,
      writeAllocationProperties(device, shareable),
      CU_MEM_ALLOC_GRANULARITY_MINIMUM,
    ),
    'cuMemGetAllocationGranularity',
  );
  return readSize(OUT0);
}

const devicesWithKeepalive = new WeakSet<Device>();

/**
 * Keeps 2 MiB of the device's memory exported until the process exits. The kernel driver sets up
 * sharing with a device's first exported object on the machine, and tears it down with the last.
 * Each takes 0.5 ms on an H200; with another exported object alive, 0.02 and 0.03 ms. Without
 * memory for this, sharing still works, but is slower.
 */
export function ensureKeepaliveAllocation(device: Device): void {
  if (devicesWithKeepalive.has(device)) return;
  devicesWithKeepalive.add(device);
  const byteLength = allocationGranularity(device, true);
  if (cu.cuMemCreate(OUT0, byteLength, writeAllocationProperties(device, true), 0) !== 0) return;
  const memory = readHandle<CUmemGenericAllocationHandle>(OUT0, cu.cuMemRelease);
  const exported = cu.cuMemExportToShareableHandle(
    OUT0,
    memory,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    0,
  );
  // The descriptor, which child processes do not inherit, keeps the memory alive.
  cu.cuMemRelease(memory);
  if (exported === 0) setCloseOnExec(readInt32(OUT0));
}

// ---- File descriptors: the context keeps those of exported objects, and closes each with its object ----

interface ContextFds {
  readonly epoch: number;
  readonly fds: Set<number>;
}

const contextFds = new WeakMap<Context, ContextFds>();

/**
 * Sets a descriptor close-on-exec and keeps it until {@link closeContextFd}. Returns the
 * descriptor.
 */
export function addContextFd(context: Context, fd: number): number {
  try {
    setCloseOnExec(fd);
  } catch (error) {
    discardFd(fd);
    throw error;
  }
  register(context, fd);
  return fd;
}

/** Like {@link addContextFd}, for a duplicate of the descriptor. @throws SystemError */
export function addDuplicateFd(context: Context, fd: number): number {
  const duplicate = duplicateFd(fd);
  register(context, duplicate);
  return duplicate;
}

function register(context: Context, fd: number): void {
  const current = contextFds.get(context);
  if (current?.epoch === context.epoch) {
    current.fds.add(fd);
    return;
  }
  // These are from before a reset, which closed no descriptor.
  for (const stale of current?.fds ?? []) discardFd(stale);
  contextFds.set(context, { epoch: context.epoch, fds: new Set([fd]) });
}

/** Closes a kept descriptor. Does nothing if it is already closed. */
export function closeContextFd(context: Context, fd: number): void {
  if (contextFds.get(context)?.fds.delete(fd)) discardFd(fd);
}

// ---- Chunks of memory in reserved addresses ----

/** A chunk of physical memory, mapped in a reservation. */
export interface PhysicalChunk {
  readonly address: CUdeviceptr;
  readonly byteLength: number;
  /** Undefined for a chunk from another process: only the mapping keeps it alive. */
  readonly handle: CUmemGenericAllocationHandle | undefined;
  /** The descriptor that other processes open, once it was shared or if it was imported. */
  fd: number | undefined;
  /** A separate, marked descriptor for sharing it read-only, once it was shared that way. */
  readOnlyFd?: number | undefined;
}

/** The total size of chunks, in bytes. */
export const totalByteLength = (chunks: readonly PhysicalChunk[]): number =>
  chunks.reduce((sum, { byteLength }) => sum + byteLength, 0);

/** Reserves addresses without memory behind them. */
export function reserveAddresses(byteLength: number): CUdeviceptr {
  check(
    cu.cuMemAddressReserve(OUT0, byteLength, 0, 0 as CUdeviceptr, 0),
    'cuMemAddressReserve',
    () => `reserving ${formatBytes(byteLength)} of addresses`,
  );
  return readHandle<CUdeviceptr>(OUT0, (exact) => cu.cuMemAddressFree(exact, byteLength));
}

/**
 * Creates memory on a device and maps it at reserved addresses.
 *
 * @param devices those that get access
 * @throws CudaError
 */
export function createChunk(
  context: Context,
  address: CUdeviceptr,
  byteLength: number,
  shareable: boolean,
  devices: Iterable<Device>,
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
    for (const device of devices) allowAccess(chunk, device, 'read-write');
  } catch (error) {
    // The address was never returned, so nothing uses it.
    releaseOrWarn(() => {
      if (isMapped) unmapChunk(context, chunk);
      else check(cu.cuMemRelease(handle), 'cuMemRelease');
    });
    throw error;
  }
  return chunk;
}

function mapChunk(
  address: CUdeviceptr,
  byteLength: number,
  handle: CUmemGenericAllocationHandle,
): void {
  check(
    cu.cuMemMap(address, byteLength, 0, handle, 0),
    'cuMemMap',
    () => `mapping ${formatBytes(byteLength)}`,
  );
}

/**
 * Maps a chunk of another process by its file descriptor. Only the mapping keeps the memory afterwards.
 * Returns the driver's status if it refuses the descriptor. @throws CudaError
 */
export function importChunk(
  { address, byteLength }: Pick<PhysicalChunk, 'address' | 'byteLength'>,
  fd: number,
): CUresult {
  const status = cu.cuMemImportFromShareableHandle(
    OUT0,
    fd as Address,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  );
  if (status !== 0) return status;
  const handle = readHandle<CUmemGenericAllocationHandle>(OUT0, cu.cuMemRelease);
  try {
    mapChunk(address, byteLength, handle);
  } finally {
    check(cu.cuMemRelease(handle), 'cuMemRelease');
  }
  return status;
}

/** Grants a device access to chunks that fill a range. */
export function allowAccess(
  { address, byteLength }: Pick<PhysicalChunk, 'address' | 'byteLength'>,
  device: Device,
  access: Access,
): void {
  const descriptor = writeStruct('CUmemAccessDesc', {
    'location.type': CU_MEM_LOCATION_TYPE_DEVICE,
    'location.id': device.handle,
    flags: access === 'read' ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  });
  check(
    cu.cuMemSetAccess(address, byteLength, descriptor, 1),
    'cuMemSetAccess',
    () => `giving ${device} access to ${formatBytes(byteLength)}`,
  );
}

/**
 * Which devices can access virtual memory, of this process or another one. They can access all of its
 * chunks, later ones included.
 */
export class VirtualAccess implements DeviceAccess {
  readonly accessRemedy = 'allowAccess of the virtual memory, or of the buffer';
  /** The device of the context that the memory is mapped in, and those that were given access. */
  readonly devices: Set<Device>;
  readonly #owner: Device;
  readonly #access: Access;
  readonly #chunks: readonly PhysicalChunk[];

  /**
   * @param owner the device that has the memory, or in which it is mapped
   * @param access what the devices may do
   * @param chunks the chunks, one behind the other; later ones are added to this array
   */
  constructor(owner: Device, access: Access, chunks: readonly PhysicalChunk[]) {
    this.devices = new Set([owner]);
    this.#owner = owner;
    this.#access = access;
    this.#chunks = chunks;
  }

  access(device: Device): Access | 'none' {
    return this.devices.has(device) ? this.#access : 'none';
  }

  /** @throws RangeError for the owner; NotSupportedError if the device cannot access its memory */
  allowAccess(device: Device): void {
    const owner = this.#owner;
    if (device === owner)
      throw new RangeError(`the memory is on ${owner} itself, which can access it`);
    if (!device.canAccessPeer(owner))
      throw new NotSupportedError(
        `${device} cannot access the memory of ${owner}: copy there instead`,
      );
    if (this.devices.has(device)) return;
    const [first] = this.#chunks;
    // One call for all: either each chunk is accessible, or none.
    if (first)
      allowAccess(
        { address: first.address, byteLength: totalByteLength(this.#chunks) },
        device,
        this.#access,
      );
    this.devices.add(device);
  }
}

/** Chunks of virtual memory, as other processes can open them. */
export interface SharedChunks {
  /** 16 random bytes in hex. Never changes for the same memory; read-only sharing has its own. */
  readonly id: string;
  /** The index of the first of these chunks in the virtual memory. */
  readonly firstChunk: number;
  /** Where the range begins in the first chunk, in bytes. */
  readonly byteOffset: number;
  /** Each with its descriptor, which the chunk owns. */
  readonly chunks: readonly { readonly byteLength: number; readonly fd: number }[];
}

/**
 * Exports the chunks that a range overlaps.
 *
 * @throws IpcError for more than `maxChunks`
 */
export function shareChunks(
  context: Context,
  chunks: readonly PhysicalChunk[],
  start: CUdeviceptr,
  byteLength: number,
  maxChunks: number,
  access: Access,
): Omit<SharedChunks, 'id'> {
  const firstChunk = chunks.findIndex((chunk) => chunk.address + chunk.byteLength > start);
  const overlapping = chunks
    .slice(firstChunk)
    .filter(({ address }) => address < start + byteLength);
  if (overlapping.length > maxChunks)
    throw new IpcError(
      `this range has ${overlapping.length} chunks, and at most ${maxChunks} can be shared at once: grow in larger steps`,
    );
  const shared = overlapping.map((chunk) => ({
    byteLength: chunk.byteLength,
    fd: exportChunk(context, chunk, access),
  }));
  return { firstChunk, byteOffset: start - (overlapping[0]?.address ?? start), chunks: shared };
}

/**
 * The descriptor that other processes open. Made once for each kind of access, closed with the
 * chunk.
 */
function exportChunk(context: Context, chunk: PhysicalChunk, access: Access): number {
  const name = access === 'read' ? 'readOnlyFd' : 'fd';
  const existing = chunk[name];
  if (existing !== undefined) return existing;
  const { handle, byteLength } = chunk;
  if (handle === undefined)
    throw new TypeError('a chunk from another process cannot be exported again');
  check(
    cu.cuMemExportToShareableHandle(OUT0, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
    'cuMemExportToShareableHandle',
    () => `sharing ${formatBytes(byteLength)} of virtual memory`,
  );
  const fd = addContextFd(context, readInt32(OUT0));
  try {
    if (access === 'read') markReadOnly(fd);
  } catch (error) {
    closeContextFd(context, fd);
    throw error;
  }
  chunk[name] = fd;
  ensureKeepaliveAllocation(context.device);
  return fd;
}

/**
 * Unmaps and releases a chunk. Every step runs, even if another fails. The memory is freed with its
 * last mapping and handle.
 */
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
 * Unmaps all chunks, newest first, and frees the reservation. The driver refuses to free addresses
 * that still have a mapping, so trying is safe.
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
    .map((chunk) => () => unmapChunk(context, chunk));
  const free = (): void => check(cu.cuMemAddressFree(address, byteLength), 'cuMemAddressFree');
  runAll([...unmaps, free]);
}
