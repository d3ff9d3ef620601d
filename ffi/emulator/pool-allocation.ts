/** Stream-ordered allocation: memory of pools is allocated and freed in stream order. */
import type { Driver } from '../functions.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { Allocation } from './blocks.ts';
import { allocateCaptured, freeCaptured } from './graph-memory.ts';
import type { Memory } from './memory.ts';
import type { Pool, PoolRegion } from './pool.ts';
import type { ImportedRegion } from './pool-import.ts';
import type { EmulatorParts } from './pools.ts';
import type { Stream, StreamQueues } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_INVALID_HANDLE,
} = CUresult;

type PoolAllocationFunctions = Pick<
  Driver,
  'cuMemAllocAsync' | 'cuMemAllocFromPoolAsync' | 'cuMemFreeAsync'
>;

const isImported = (region: PoolRegion): region is ImportedRegion => 'owner' in region;

/** The live pool memory that starts at an address. Null if it is freed or does not start there. */
export function poolRegionAt(memory: Memory, address: number): PoolRegion | null | undefined {
  const region = memory.regions.at(address);
  if (region?.kind !== 'pool') return undefined;
  const found = region as PoolRegion;
  return found.address === address && !found.isFreed ? found : null;
}

/**
 * Frees pool memory after all queued work, without waiting. Undefined if the address is in no pool.
 */
export function freePoolMemory(
  { memory, queues, contexts, pools }: EmulatorParts,
  address: number,
): Status | undefined {
  const region = poolRegionAt(memory, address);
  if (region === undefined) return undefined;
  if (region === null || pools.isGraphMemory(region)) return CUDA_ERROR_INVALID_VALUE;
  const context = contexts.top?.alive ? contexts.top : contexts.primary(region.device);
  enqueueFree(queues.createJoinStream(context), region, queues, false);
  queues.progress();
  return CUDA_SUCCESS;
}

/** Frees memory when a stream reaches the free. */
function enqueueFree(
  stream: Stream,
  region: PoolRegion,
  queues: StreamQueues,
  isCounted: boolean,
): void {
  let free: (() => void) | undefined;
  if (isImported(region)) {
    region.isFreed = true;
    free = () => region.owner.free(region);
  } else {
    free = region.pool?.freeLater(region, stream, isCounted);
  }
  queues.enqueue(stream, () => {
    free?.();
    return true;
  });
}

export function poolAllocationFunctions(parts: EmulatorParts): PoolAllocationFunctions {
  const { pools, memory, queues, host } = parts;
  const allocate = (
    out: number,
    byteLength: number,
    stream: Stream,
    pool: Pool | undefined,
  ): Status => {
    if (!(byteLength >= 0)) return CUDA_ERROR_INVALID_VALUE;
    if (byteLength === 0) {
      host.setUint64(out, 0);
      return CUDA_SUCCESS;
    }
    const { capture } = stream;
    if (capture)
      return pool
        ? allocateCaptured(parts, out, byteLength, { stream, pool, capture })
        : CUDA_ERROR_OUT_OF_MEMORY;
    const region = pool?.allocate(byteLength, stream) ?? retry(byteLength, stream, pool);
    if (!region) return CUDA_ERROR_OUT_OF_MEMORY;
    queues.enqueue(stream, () => true);
    host.setUint64(out, region.address);
    return CUDA_SUCCESS;
  };
  /** Allocates after running the frees that can run now. */
  const retry = (byteLength: number, stream: Stream, pool: Pool | undefined) => {
    queues.progress();
    return pool?.allocate(byteLength, stream);
  };
  /** Plain memory that a stream has freed. It becomes free at the next synchronization. */
  let freedPlainMemory: Allocation[] = [];
  queues.onSynchronize(() => {
    for (const allocation of freedPlainMemory)
      if (memory.blocks.allocationAt(allocation.address) === allocation)
        memory.blocks.free(allocation);
    freedPlainMemory = [];
  });
  return {
    cuMemAllocAsync(out, byteLength, handle) {
      const stream = queues.get(handle);
      if (!stream) return CUDA_ERROR_INVALID_HANDLE;
      return allocate(out, byteLength, stream, pools.current(stream.context.device));
    },
    cuMemAllocFromPoolAsync(out, byteLength, poolHandle, handle) {
      const stream = queues.get(handle);
      if (!stream) return CUDA_ERROR_INVALID_HANDLE;
      // Only its owner allocates from an imported pool.
      const pool = pools.get(poolHandle);
      return pool ? allocate(out, byteLength, stream, pool) : CUDA_ERROR_INVALID_VALUE;
    },
    cuMemFreeAsync(address, handle) {
      const stream = queues.get(handle);
      if (!stream) return CUDA_ERROR_INVALID_HANDLE;
      if (address === 0) return CUDA_SUCCESS;
      if (stream.capture) return freeCaptured(parts, address, stream, stream.capture);
      const region = poolRegionAt(memory, address);
      if (region && pools.isGraphMemory(region)) return CUDA_ERROR_INVALID_VALUE;
      if (region === null) return CUDA_ERROR_INVALID_VALUE;
      if (region === undefined) return freePlainLater(address, stream);
      enqueueFree(stream, region, queues, true);
      return CUDA_SUCCESS;
    },
  };

  /** Frees plain device memory in stream order. */
  function freePlainLater(address: number, stream: Stream): Status {
    const allocation = memory.blocks.allocationAt(address);
    if (allocation?.address !== address) return CUDA_ERROR_INVALID_VALUE;
    queues.enqueue(stream, () => {
      freedPlainMemory.push(allocation);
      return true;
    });
    return CUDA_SUCCESS;
  }
}
