/** The pools of this process: each device's default and current pool, and created ones. */
import {
  CU_MEM_ACCESS_FLAGS_PROT_NONE,
  CU_MEM_ACCESS_FLAGS_PROT_READ,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
  CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
  CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
  CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
  CU_MEMPOOL_ATTR_USED_MEM_HIGH,
} from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import { type decodeStruct, structs } from '../structs.ts';
import { GRANULARITY, roundUp } from './address-space.ts';
import type { Contexts } from './context.ts';
import type { Handles } from './handles.ts';
import type { HostMemory } from './host-memory.ts';
import type { Memory } from './memory.ts';
import { handleTypesStatus, locationStatus } from './memory-location.ts';
import { POOL_CHUNK_BYTES, Pool, type PoolRegion } from './pool.ts';
import type { ImportedPool, ImportedPools } from './pool-import.ts';
import type { Stream, StreamQueues } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_INVALID_DEVICE,
  CUDA_ERROR_NOT_SUPPORTED,
} = CUresult;

export class Pools {
  readonly #memory: Memory;
  readonly #contexts: Contexts;
  readonly #handles: Handles;
  /** All pools, including destroyed ones that are not empty. */
  readonly #all = new Set<Pool>();
  readonly #byHandle = new Map<number, Pool>();
  readonly #default = new Map<number, Pool>();
  readonly #current = new Map<number, Pool>();
  /** The pools for memory of graphs. */
  readonly #forGraphs = new Map<number, Pool>();

  constructor(memory: Memory, contexts: Contexts, queues: StreamQueues, handles: Handles) {
    this.#memory = memory;
    this.#contexts = contexts;
    this.#handles = handles;
    memory.onUsage((device) =>
      this.#poolsOf(device).reduce((sum, { extents }) => sum + extents.reservedBytes, 0),
    );
    memory.onPressure((device) => {
      for (const pool of this.#poolsOf(device)) pool.trim(0);
    });
    queues.onSynchronize((isContext) => {
      if (isContext) for (const pool of this.#all) pool.countDelayedFrees();
      for (const pool of this.#all)
        if (BigInt(pool.extents.reservedBytes) > pool.releaseThreshold)
          pool.trim(Number(pool.releaseThreshold));
    });
    contexts.onEnd((context) => {
      for (const pool of this.#all) pool.freePendingOf((stream) => stream.context === context);
    });
  }

  /** How many pools were created and not destroyed. */
  get createdCount(): number {
    return [...this.#byHandle.values()].filter(({ isDefault }) => !isDefault).length;
  }

  /** How many descriptors of pools this driver has open itself. */
  get fdCount(): number {
    return [...this.#all].filter(({ isClosed }) => !isClosed).length;
  }

  get allocationCount(): number {
    const graphPools = new Set(this.#forGraphs.values());
    return [...this.#all].reduce(
      (sum, pool) => sum + (graphPools.has(pool) ? 0 : pool.allocationCount),
      0,
    );
  }

  get(handle: number): Pool | undefined {
    return this.#byHandle.get(handle);
  }

  /** The default pool of a device. Undefined if the system refuses. */
  default(device: number): Pool | undefined {
    const known = this.#default.get(device);
    if (known) return known;
    const pool = this.#make(device, 0, this.#memory.totalBytes, true);
    if (pool) this.#default.set(device, pool);
    return pool;
  }

  /** The pool that cuMemAllocAsync allocates from. */
  current(device: number): Pool | undefined {
    const chosen = this.#current.get(device);
    return chosen && !chosen.isDestroyed ? chosen : this.default(device);
  }

  /**
   * The internal pool for memory of graphs. It keeps reserved memory until it is trimmed.
   */
  forGraphs(device: number): Pool | undefined {
    const known = this.#forGraphs.get(device);
    if (known) return known;
    const pool = this.#make(device, 0, this.#memory.totalBytes, true);
    if (!pool) return undefined;
    pool.releaseThreshold = BigInt(this.#memory.totalBytes);
    this.#byHandle.delete(pool.handle);
    this.#forGraphs.set(device, pool);
    return pool;
  }

  /** Whether memory belongs to a graph: only the graph may free it. */
  isGraphMemory({ pool }: PoolRegion): boolean {
    return pool !== undefined && this.#forGraphs.get(pool.device) === pool;
  }

  setCurrent(device: number, pool: Pool): Status {
    if (pool.device !== device) return CUDA_ERROR_INVALID_VALUE;
    this.#current.set(device, pool);
    return CUDA_SUCCESS;
  }

  /** Creates a pool. Returns the status on failure. */
  create(properties: ReturnType<typeof decodeStruct<'CUmemPoolProps'>>): Pool | Status {
    const { allocType, handleTypes, maxSize } = properties;
    if (allocType !== CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    const device = properties['location.id'];
    const located = locationStatus(this.#contexts, properties['location.type'], device);
    if (located === CUDA_ERROR_INVALID_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (located !== CUDA_SUCCESS) return located;
    const shared = handleTypesStatus(handleTypes);
    if (shared !== CUDA_SUCCESS) return shared;
    const total = this.#memory.totalBytes;
    const capacity = maxSize === 0 ? total : Math.min(roundUp(maxSize, POOL_CHUNK_BYTES), total);
    return this.#make(device, handleTypes, capacity, false) ?? CUDA_ERROR_OUT_OF_MEMORY;
  }

  destroy(pool: Pool): Status {
    if (pool.isDefault) return CUDA_ERROR_INVALID_VALUE;
    this.#byHandle.delete(pool.handle);
    this.#handles.release('CUmemoryPool', pool.handle);
    pool.destroy();
    this.#forgetEmpty();
    return CUDA_SUCCESS;
  }

  allocate(pool: Pool, byteLength: number, stream: Stream): PoolRegion | undefined {
    return pool.allocate(byteLength, stream);
  }

  #poolsOf(device: number): Pool[] {
    return [...this.#all].filter((pool) => pool.device === device);
  }

  #forgetEmpty(): void {
    for (const pool of this.#all)
      if (pool.isDestroyed && pool.extents.reservedBytes === 0) this.#all.delete(pool);
  }

  #make(
    device: number,
    handleTypes: number,
    byteLength: number,
    isDefault: boolean,
  ): Pool | undefined {
    const handle = this.#handles.make('CUmemoryPool');
    const capacity = roundUp(byteLength, GRANULARITY);
    const physicalDevice = this.#contexts.physicalDevice(device);
    const options = { handle, device, physicalDevice, handleTypes, capacity, isDefault };
    const pool = Pool.create(this.#memory, options);
    if (!pool) return undefined;
    this.#all.add(pool);
    this.#byHandle.set(handle, pool);
    return pool;
  }
}

/** The width of a pool attribute in bytes. Undefined for an unknown attribute. */
const poolAttributeWidth = (attribute: number): 4 | 8 | undefined => {
  if (attribute < 1 || attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH) return undefined;
  return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? 4 : 8;
};

function poolAttribute(pool: Pool, attribute: number): bigint {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return pool.releaseThreshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return BigInt(pool.extents.reservedBytes);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return BigInt(pool.extents.reservedHighWater);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return BigInt(pool.usedBytes);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return BigInt(pool.usedHighWater);
    default:
      return BigInt(pool.reuse[attribute - 1] as number);
  }
}

function setPoolAttribute(pool: Pool, attribute: number, value: bigint): Status {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool.releaseThreshold = value;
      return CUDA_SUCCESS;
    // A high-water mark can only be reset to the current value.
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (value !== 0n) return CUDA_ERROR_INVALID_VALUE;
      pool.extents.reservedHighWater = pool.extents.reservedBytes;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (value !== 0n) return CUDA_ERROR_INVALID_VALUE;
      pool.usedHighWater = pool.usedBytes;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return CUDA_ERROR_INVALID_VALUE;
    default:
      pool.reuse[attribute - 1] = value === 0n ? 0 : 1;
      return CUDA_SUCCESS;
  }
}

// ---- The driver functions of pools ----

/** The parts of the driver that several groups of functions use. */
export interface EmulatorParts {
  readonly pools: Pools;
  readonly imported: ImportedPools;
  readonly memory: Memory;
  readonly contexts: Contexts;
  readonly queues: StreamQueues;
  readonly host: HostMemory;
}

type PoolFunctions = Pick<
  Driver,
  | 'cuDeviceGetDefaultMemPool'
  | 'cuDeviceGetMemPool'
  | 'cuDeviceSetMemPool'
  | 'cuMemPoolCreate'
  | 'cuMemPoolDestroy'
  | 'cuMemPoolTrimTo'
  | 'cuMemPoolSetAttribute'
  | 'cuMemPoolGetAttribute'
  | 'cuMemPoolSetAccess'
  | 'cuMemPoolGetAccess'
>;

export function poolFunctions({ pools, imported, contexts, host }: EmulatorParts): PoolFunctions {
  const writeHandle = (out: number, pool: Pool | undefined): Status => {
    if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
    host.setUint64(out, pool.handle);
    return CUDA_SUCCESS;
  };
  const anyPool = (handle: number): Pool | ImportedPool | undefined =>
    pools.get(handle) ?? imported.get(handle);

  /** Sets the access of a device. The pool's own device always has full access. */
  const setAccess = (pool: Pool | ImportedPool, device: number, flags: number): Status => {
    if (device !== pool.device) {
      pool.accessFlags.set(device, flags);
      return CUDA_SUCCESS;
    }
    if (flags === CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_ERROR_INVALID_DEVICE;
    return flags === CU_MEM_ACCESS_FLAGS_PROT_READ ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
  };

  return {
    cuDeviceGetDefaultMemPool: (out, device) =>
      contexts.hasDevice(device)
        ? writeHandle(out, pools.default(device))
        : CUDA_ERROR_INVALID_DEVICE,
    cuDeviceGetMemPool: (out, device) =>
      contexts.hasDevice(device)
        ? writeHandle(out, pools.current(device))
        : CUDA_ERROR_INVALID_VALUE,
    cuDeviceSetMemPool(device, handle) {
      if (!contexts.hasDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
      const pool = pools.get(handle);
      return pool ? pools.setCurrent(device, pool) : CUDA_ERROR_INVALID_VALUE;
    },
    cuMemPoolCreate(out, address) {
      const bytes = host.read(address, structs.CUmemPoolProps.byteLength);
      const properties = host.readStruct('CUmemPoolProps', address);
      const [reservedAt] = structs.CUmemPoolProps.fields.reserved;
      if (!bytes || !properties || bytes.subarray(reservedAt).some((byte) => byte !== 0))
        return CUDA_ERROR_INVALID_VALUE;
      const pool = pools.create(properties);
      return typeof pool === 'number' ? pool : writeHandle(out, pool);
    },
    cuMemPoolDestroy(handle) {
      const foreign = imported.get(handle);
      if (foreign) return imported.destroy(foreign) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
      if (imported.wasDestroyed(handle)) return CUDA_SUCCESS;
      const pool = pools.get(handle);
      return pool ? pools.destroy(pool) : CUDA_ERROR_INVALID_VALUE;
    },
    cuMemPoolTrimTo(handle, keep) {
      pools.get(handle)?.trim(keep);
      return anyPool(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    },
    cuMemPoolSetAttribute(handle, attribute, address) {
      const pool = pools.get(handle);
      const width = poolAttributeWidth(attribute);
      const bytes = width && host.read(address, width);
      if (!pool || !bytes) return CUDA_ERROR_INVALID_VALUE;
      const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
      const value = width === 4 ? BigInt(buffer.readUInt32LE()) : buffer.readBigUInt64LE();
      return setPoolAttribute(pool, attribute, value);
    },
    cuMemPoolGetAttribute(handle, attribute, address) {
      const pool = pools.get(handle);
      const width = poolAttributeWidth(attribute);
      if (!pool || width === undefined || !host.isWritable(address))
        return CUDA_ERROR_INVALID_VALUE;
      const value = poolAttribute(pool, attribute);
      if (width === 4) host.setInt32(address, Number(value));
      else host.setBigUint64(address, value);
      return CUDA_SUCCESS;
    },
    cuMemPoolSetAccess(handle, descriptors, count) {
      const pool = anyPool(handle);
      if (!pool || !(count >= 0)) return CUDA_ERROR_INVALID_VALUE;
      const { byteLength } = structs.CUmemAccessDesc;
      for (let at = 0; at < count; at += 1) {
        const given = host.readStruct('CUmemAccessDesc', descriptors + at * byteLength);
        const isRights =
          given?.flags === CU_MEM_ACCESS_FLAGS_PROT_NONE ||
          given?.flags === CU_MEM_ACCESS_FLAGS_PROT_READ ||
          given?.flags === CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        if (!given || !isRights) return CUDA_ERROR_INVALID_VALUE;
        const device = given['location.id'];
        const located = locationStatus(contexts, given['location.type'], device);
        const status = located === CUDA_SUCCESS ? setAccess(pool, device, given.flags) : located;
        if (status !== CUDA_SUCCESS) return status;
      }
      return CUDA_SUCCESS;
    },
    cuMemPoolGetAccess(out, handle, location) {
      const pool = anyPool(handle);
      const place = host.readStruct('CUmemLocation', location);
      if (!pool || !place) return CUDA_ERROR_INVALID_VALUE;
      const status = locationStatus(contexts, place.type, place.id);
      if (status === CUDA_SUCCESS) host.setInt32(out, pool.access(place.id));
      return status;
    },
  };
}
