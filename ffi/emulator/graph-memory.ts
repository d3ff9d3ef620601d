/** Memory of graphs: it exists in each launch, from its allocation node to its free node. */
import { CUresult, type CUresult as Status } from '../results.ts';
import { fillUninitialized } from './address-space.ts';
import type { Pool, PoolRegion } from './pool.ts';
import type { EmulatorParts } from './pools.ts';
import type { Capture, Stream } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_OUT_OF_MEMORY,
  CUDA_ERROR_NOT_SUPPORTED,
} = CUresult;

/** The memory of a graph, with a reference count. It is freed with the last reference. */
export class GraphMemory {
  readonly #free: () => void;
  #references = 0;

  constructor(free: () => void) {
    this.#free = free;
  }

  addReference(): void {
    this.#references += 1;
  }

  removeReference(): void {
    this.#references -= 1;
    if (this.#references === 0) this.#free();
  }

  /** Frees it despite references: the context has ended. */
  free(): void {
    if (this.#references > 0) this.#free();
    this.#references = Number.NEGATIVE_INFINITY;
  }
}

/** The allocations of each capture by address. */
const captureAllocations = new WeakMap<Capture, Map<number, PoolRegion>>();

const regionsOf = (capture: Capture): Map<number, PoolRegion> => {
  const regions = captureAllocations.get(capture) ?? new Map<number, PoolRegion>();
  captureAllocations.set(capture, regions);
  return regions;
};

/** Records a node. */
function enqueueNode(
  queues: EmulatorParts['queues'],
  stream: Stream,
  node: 'allocate' | 'free',
  work: () => void,
): void {
  const run = (): true => {
    work();
    return true;
  };
  queues.enqueue(stream, run, node);
}

/** Records an allocation. Its address is the same at each launch. */
export function allocateCaptured(
  { pools, memory, queues, host }: Pick<EmulatorParts, 'pools' | 'memory' | 'queues' | 'host'>,
  out: number,
  byteLength: number,
  { stream, pool, capture }: { stream: Stream; pool: Pool; capture: Capture },
): Status {
  // As on hardware, memory of graphs cannot be shared with other processes.
  if (pool.handleTypes !== 0) return CUDA_ERROR_NOT_SUPPORTED;
  const region = pools
    .forGraphs(pool.device)
    ?.allocate(byteLength, stream, (device) => pool.access(device));
  if (!region) return CUDA_ERROR_OUT_OF_MEMORY;
  regionsOf(capture).set(region.address, region);
  enqueueNode(queues, stream, 'allocate', () => {
    // Contents of an earlier launch are not preserved.
    fillUninitialized(region.address, region.byteLength);
    memory.regions.add(region);
  });
  host.setUint64(out, region.address);
  return CUDA_SUCCESS;
}

/** Records a free of memory that the same capture allocated. */
export function freeCaptured(
  { memory, queues }: Pick<EmulatorParts, 'memory' | 'queues'>,
  address: number,
  stream: Stream,
  capture: Capture,
): Status {
  const region = regionsOf(capture).get(address);
  if (!region || region.isFreed) return CUDA_ERROR_INVALID_VALUE;
  region.isFreed = true;
  enqueueNode(queues, stream, 'free', () => memory.regions.remove(region));
  return CUDA_SUCCESS;
}

/** The memory of a capture that has ended. Only launches can access it. */
export function takeGraphMemory(
  { memory }: Pick<EmulatorParts, 'memory'>,
  capture: Capture,
): GraphMemory {
  const regions = [...regionsOf(capture).values()];
  for (const region of regions) memory.regions.remove(region);
  return new GraphMemory(() => {
    for (const region of regions) region.pool?.freeLater(region, capture.origin, true)();
  });
}

/** Whether a capture frees all memory that it allocates. */
export const freesAllMemory = (capture: Capture): boolean =>
  [...regionsOf(capture).values()].every(({ isFreed }) => isFreed);
