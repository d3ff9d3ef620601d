import {
  BLOCK,
  OUT0,
  readHandle,
  readInt32,
  readSize,
  readUint64,
  writeInt32,
  writeStruct,
  writeUint64,
} from '../../ffi/arena.ts';
import {
  CU_MEM_ACCESS_FLAGS_PROT_NONE,
  CU_MEM_ACCESS_FLAGS_PROT_READ,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEM_HANDLE_TYPE_NONE,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  CU_MEM_LOCATION_TYPE_DEVICE,
  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
  CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
  CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
  CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUmemoryPool } from '../../ffi/types.ts';
import { check, cudaError } from '../check.ts';
import type { PlaceOptions } from '../context.ts';
import type { Device } from '../device.ts';
import { checkBoolean, checkInteger, checkOptions } from '../validate.ts';

/** Options of {@link MemoryPool.create}. */
export interface PoolOptions extends PlaceOptions {
  /** The most bytes that it reserves from the device. Default: the driver's limit. */
  readonly maxSize?: number;
  /**
   * How many unused bytes the pool keeps for later allocations. It returns the rest to the device
   * when a stream or the context is synchronized. Default Infinity.
   */
  readonly releaseThreshold?: number;
  /**
   * Whether the pool can be shared with other processes by file descriptor. Default false, because
   * it costs time in the driver.
   */
  readonly shareable?: boolean;
  /** When freed memory is reused. Default: as soon as possible. */
  readonly reuse?: Partial<PoolReuse>;
}

/** Options of {@link MemoryPool.close}. */
export interface PoolCloseOptions {
  /** Whether to close the pool's open buffers first, newest first. Default false. */
  readonly buffers?: boolean;
}

/** When a pool reuses freed memory. All are true in a new pool. */
export interface PoolReuse {
  /** In a stream that waits, by events, for the stream that freed it. */
  readonly followEventDependencies: boolean;
  /** In any stream, once the driver sees that the free is done. */
  readonly allowOpportunistic: boolean;
  /** In any stream at once: the driver makes it wait for the stream that freed the memory. */
  readonly allowInternalDependencies: boolean;
}

/** A device's access to the memory of a pool. */
export type PoolAccess = 'none' | 'read' | 'read-write';

// ---- The driver calls that create pools, and read and write their attributes ----

/** The driver's attributes for {@link PoolReuse}. */
const reuseAttributes = {
  followEventDependencies: CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
  allowOpportunistic: CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
  allowInternalDependencies: CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
} as const satisfies Record<keyof PoolReuse, number>;

export const reuseNames = Object.keys(reuseAttributes) as (keyof PoolReuse)[];

/** Creates a pool on a device. With a `maxSize` of 0, the driver chooses the limit. */
export function createPool(device: Device, shareable: boolean, maxSize: number): CUmemoryPool {
  check(
    requestPool(device, shareable, maxSize),
    'cuMemPoolCreate',
    () => `creating a${shareable ? ' shareable' : ''} memory pool on ${device}`,
  );
  return readHandle<CUmemoryPool>(OUT0, cu.cuMemPoolDestroy);
}

const requestPool = (device: Device, shareable: boolean, maxSize: number): CUresult =>
  cu.cuMemPoolCreate(
    OUT0,
    writeStruct('CUmemPoolProps', {
      allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
      handleTypes: shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
      'location.type': CU_MEM_LOCATION_TYPE_DEVICE,
      'location.id': device.handle,
      maxSize,
    }),
  );

/** Statuses of cuMemPoolCreate that mean that this kind of pool is not supported. */
const UNSUPPORTED_STATUSES: ReadonlySet<CUresult> = new Set([
  CUresult.CUDA_ERROR_INVALID_VALUE,
  CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER,
  CUresult.CUDA_ERROR_NOT_SUPPORTED,
]);

const PROBE_BYTE_LENGTH = 2 << 20;
const probed = new WeakMap<Device, boolean>();

/**
 * Whether a device supports pools that other processes can open. The first call creates a small
 * pool, because the driver of WSL reports support and then refuses.
 */
export function canMakeShareable(device: Device): boolean {
  const cached = probed.get(device);
  if (cached !== undefined) return cached;
  const isSupported =
    device.attribute('memoryPoolsSupported') !== 0 &&
    (device.attribute('mempoolSupportedHandleTypes') & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) !==
      0 &&
    probeShareable(device);
  probed.set(device, isSupported);
  return isSupported;
}

function probeShareable(device: Device): boolean {
  const status = requestPool(device, true, PROBE_BYTE_LENGTH);
  if (UNSUPPORTED_STATUSES.has(status)) return false;
  if (status !== 0)
    throw cudaError(status, 'cuMemPoolCreate', `trying shareable memory pools on ${device}`);
  check(
    cu.cuMemPoolDestroy(readHandle<CUmemoryPool>(OUT0, cu.cuMemPoolDestroy)),
    'cuMemPoolDestroy',
  );
  return true;
}

/** Reads an attribute that counts bytes. */
export function readByteCount(pool: CUmemoryPool, attribute: number): number {
  readAttribute(pool, attribute);
  return readSize(OUT0);
}

/** Reads the release threshold; Infinity if the driver keeps everything. */
export function readThreshold(pool: CUmemoryPool): number {
  readAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
  const threshold = readUint64(OUT0);
  return threshold > Number.MAX_SAFE_INTEGER ? Number.POSITIVE_INFINITY : Number(threshold);
}

export function writeThreshold(pool: CUmemoryPool, threshold: number): void {
  const value = threshold === Number.POSITIVE_INFINITY ? 2n ** 64n - 1n : threshold;
  setAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, () => writeUint64(value));
}

/** Resets a high-water mark. The driver accepts only 0. */
export const resetHighWater = (pool: CUmemoryPool, attribute: number): void =>
  setAttribute(pool, attribute, () => writeUint64(0));

export function readReuse(pool: CUmemoryPool, name: keyof PoolReuse): boolean {
  readAttribute(pool, reuseAttributes[name]);
  return readInt32(OUT0) !== 0;
}

export const writeReuse = (pool: CUmemoryPool, name: keyof PoolReuse, value: boolean): void =>
  setAttribute(pool, reuseAttributes[name], () => writeInt32(value ? 1 : 0));

function readAttribute(pool: CUmemoryPool, attribute: number): void {
  check(
    cu.cuMemPoolGetAttribute(pool, attribute, OUT0),
    'cuMemPoolGetAttribute',
    () => `reading attribute ${attribute} of a memory pool`,
  );
}

function setAttribute(
  pool: CUmemoryPool,
  attribute: number,
  write: () => ReturnType<typeof writeInt32>,
): void {
  check(
    cu.cuMemPoolSetAttribute(pool, attribute, write()),
    'cuMemPoolSetAttribute',
    () => `setting attribute ${attribute} of a memory pool`,
  );
}

const locationOf = (device: Device) =>
  ({ 'location.type': CU_MEM_LOCATION_TYPE_DEVICE, 'location.id': device.handle }) as const;

/**
 * Grants a device access to a pool's memory, or revokes it. One device per call, because one bad
 * entry makes the driver refuse a whole list.
 */
export function writeAccess(pool: CUmemoryPool, device: Device, isAllowed: boolean): void {
  const flags = isAllowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  check(
    cu.cuMemPoolSetAccess(
      pool,
      writeStruct('CUmemAccessDesc', { ...locationOf(device), flags }),
      1,
    ),
    'cuMemPoolSetAccess',
    () => `setting the access of ${device} to a memory pool`,
  );
}

export function readAccess(pool: CUmemoryPool, device: Device): PoolAccess {
  const location = writeStruct(
    'CUmemLocation',
    { type: CU_MEM_LOCATION_TYPE_DEVICE, id: device.handle },
    BLOCK,
  );
  check(
    cu.cuMemPoolGetAccess(OUT0, pool, location),
    'cuMemPoolGetAccess',
    () => `reading the access of ${device} to a memory pool`,
  );
  const flags = readInt32(OUT0);
  if (flags === CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return 'read-write';
  return flags === CU_MEM_ACCESS_FLAGS_PROT_READ ? 'read' : 'none';
}

// ---- How options are checked ----

/** @throws TypeError, RangeError */
export function checkThreshold(byteLength: unknown): void {
  if (byteLength !== Number.POSITIVE_INFINITY) checkInteger(byteLength, 'releaseThreshold');
}

/** @throws TypeError */
export function checkReuse(reuse: Partial<PoolReuse> | undefined): Partial<PoolReuse> {
  const checked = checkOptions(reuse, reuseNames, 'reuse');
  for (const name of reuseNames) checkBoolean(checked[name], name, true);
  return checked;
}
