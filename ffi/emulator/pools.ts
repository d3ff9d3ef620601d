/** The pools of this process: each device's default and current one, and those made by hand. */
import {
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
  CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
  CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
  CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
  CU_MEMPOOL_ATTR_USED_MEM_HIGH,
} from '../constants.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { decodeStruct } from '../structs.ts';
import type { Contexts } from './context.ts';
import type { Handles } from './handles.ts';
import { handleTypesStatus, locationStatus } from './location.ts';
import type { Memory } from './memory.ts';
import { Pool, type PoolRegion } from './pool.ts';
import { POOL_CHUNK_BYTES } from './pool-space.ts';
import type { Stream, StreamQueues } from './queues.ts';
import { GRANULARITY, roundUp } from './space.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_INVALID_DEVICE,
} = CUresult;

export class Pools {
  readonly #memory: Memory;
  readonly #contexts: Contexts;
  readonly #handles: Handles;
  /** Destroyed ones too, until they are empty. */
  readonly #all = new Set<Pool>();
  readonly #byHandle = new Map<number, Pool>();
  readonly #default = new Map<number, Pool>();
  readonly #current = new Map<number, Pool>();
  /** Where graphs have their memory. */
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

  get(handle: number): Pool | undefined {
    return this.#byHandle.get(handle);
  }

  /** The device's own pool; undefined where the system refuses. */
  default(device: number): Pool | undefined {
    const known = this.#default.get(device);
    if (known) return known;
    const pool = this.#make(device, 0, this.#memory.totalBytes, true);
    if (pool) this.#default.set(device, pool);
    return pool;
  }

  /** The pool that cuMemAllocAsync takes from. */
  current(device: number): Pool | undefined {
    const chosen = this.#current.get(device);
    return chosen && !chosen.isDestroyed ? chosen : this.default(device);
  }

  /**
   * The pool that nobody sees and the memory of graphs comes from; it keeps what it has reserved until
   * it is trimmed.
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

  /** Whether memory is a graph's, which only the graph frees. */
  isGraphMemory({ pool }: PoolRegion): boolean {
    return pool !== undefined && this.#forGraphs.get(pool.device) === pool;
  }

  setCurrent(device: number, pool: Pool): Status {
    if (pool.device !== device) return CUDA_ERROR_INVALID_VALUE;
    this.#current.set(device, pool);
    return CUDA_SUCCESS;
  }

  /** The pool, or why there is none. */
  create(properties: ReturnType<typeof decodeStruct<'CUmemPoolProps'>>): Pool | Status {
    const { allocType, handleTypes, maxSize } = properties;
    if (allocType !== CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    const device = properties['location.id'];
    const located = locationStatus(this.#contexts, properties['location.type'], device);
    if (located === CUDA_ERROR_INVALID_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (located !== CUDA_SUCCESS) return located;
    const shared = handleTypesStatus(handleTypes);
    if (shared !== CUDA_SUCCESS) return shared;
    if (!Number.isSafeInteger(maxSize)) return CUDA_ERROR_INVALID_VALUE;
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
    const pool = Pool.create(this.#memory, { handle, device, handleTypes, capacity, isDefault });
    if (!pool) return undefined;
    this.#all.add(pool);
    this.#byHandle.set(handle, pool);
    return pool;
  }
}

/** How wide a pool's attribute is; undefined for one that is none. */
export const poolAttributeWidth = (attribute: number): 4 | 8 | undefined => {
  if (attribute < 1 || attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH) return undefined;
  return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? 4 : 8;
};

export function poolAttribute(pool: Pool, attribute: number): bigint {
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

export function setPoolAttribute(pool: Pool, attribute: number, value: bigint): Status {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool.releaseThreshold = value;
      return CUDA_SUCCESS;
    // A high-water mark can only be set back, to what is there now.
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
