/** What the driver reports of a kernel: its attributes, and its occupancy. */
import { OUT0, OUT1, readInt32 } from '../../ffi/arena.ts';
import {
  CU_FUNC_ATTRIBUTE_BINARY_VERSION,
  CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
  CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
  CU_FUNC_ATTRIBUTE_NUM_REGS,
  CU_FUNC_ATTRIBUTE_PTX_VERSION,
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import type { CUresult } from '../../ffi/results.ts';
import type { Address, CUfunction } from '../../ffi/types.ts';
import { check } from '../check.ts';

const attributeNumbers = {
  maxThreadsPerBlock: CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
  sharedBytes: CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
  constantBytes: CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES,
  localBytes: CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
  registers: CU_FUNC_ATTRIBUTE_NUM_REGS,
  ptxVersion: CU_FUNC_ATTRIBUTE_PTX_VERSION,
  binaryVersion: CU_FUNC_ATTRIBUTE_BINARY_VERSION,
  maxDynamicSharedBytes: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
} as const;

/** The resources that a compiled kernel uses, and its limits. */
export interface KernelAttributes {
  /** The most threads of a block; its registers may allow fewer than the device. */
  readonly maxThreadsPerBlock: number;
  /** Static shared memory of a block, in bytes. */
  readonly sharedBytes: number;
  /** Constant memory, in bytes. */
  readonly constantBytes: number;
  /** Local memory of a thread, in bytes: its arrays, and values that did not fit into registers. */
  readonly localBytes: number;
  /** Registers of a thread. */
  readonly registers: number;
  /** The architecture of its PTX, e.g. 70 for compute capability 7.0. */
  readonly ptxVersion: number;
  /** The architecture of its machine code, e.g. 90. */
  readonly binaryVersion: number;
  /** The most dynamic shared memory of a block, in bytes; a launch that asks for more raises it. */
  readonly maxDynamicSharedBytes: number;
}

/** Reads one attribute by its number. */
export function readAttribute(handle: CUfunction, attribute: number): number {
  check(cu.cuFuncGetAttribute(OUT0, attribute, handle), 'cuFuncGetAttribute');
  return readInt32(OUT0);
}

/** Reads all attributes. */
export const readAttributes = (handle: CUfunction): KernelAttributes =>
  Object.fromEntries(
    Object.entries(attributeNumbers).map(([name, number]) => [name, readAttribute(handle, number)]),
  ) as unknown as KernelAttributes;

// ---- Occupancy: how many blocks and clusters run at once ----

/** Options of the occupancy of a kernel. */
export interface OccupancyOptions {
  /** Dynamic shared memory of each block, in bytes. Default 0. */
  readonly sharedBytes?: number;
}

/** The number of blocks on one multiprocessor. The function's context must be current. */
export function activeBlocks(
  handle: CUfunction,
  { threads, sharedBytes }: { readonly threads: number; readonly sharedBytes: number },
): number {
  const call = 'cuOccupancyMaxActiveBlocksPerMultiprocessor';
  check(cu[call](OUT0, handle, threads, sharedBytes), call);
  return readInt32(OUT0);
}

/** The struct of a launch with clusters. */
interface LaunchStruct {
  readonly address: Address;
}

/** The number of clusters on the device. As {@link activeBlocks}. */
export function activeClusters(handle: CUfunction, { address }: LaunchStruct): number {
  const call = 'cuOccupancyMaxActiveClusters';
  checkClusterCall(cu[call](OUT0, handle, address), call);
  return readInt32(OUT0);
}

/** The most blocks of a cluster. As {@link activeBlocks}. */
export function clusterBlocks(handle: CUfunction, { address }: LaunchStruct): number {
  const call = 'cuOccupancyMaxPotentialClusterSize';
  checkClusterCall(cu[call](OUT0, handle, address), call);
  return readInt32(OUT0);
}

const checkClusterCall = (status: CUresult, call: FunctionName): void =>
  check(status, call, () => 'asking how large a cluster can be');

/** The block size with the highest occupancy, and the smallest grid that fills the device. */
export interface SuggestedBlock {
  readonly blockSize: number;
  readonly minGridSize: number;
}

/** The function's context must be current. */
export function suggestBlock(
  handle: CUfunction,
  sharedBytes: number,
  maxBlockSize: number,
): SuggestedBlock {
  const call = 'cuOccupancyMaxPotentialBlockSize';
  // The shared memory does not depend on the block size, so there is no callback.
  check(cu[call](OUT0, OUT1, handle, 0 as Address, sharedBytes, maxBlockSize), call);
  return { blockSize: readInt32(OUT1), minGridSize: readInt32(OUT0) };
}
