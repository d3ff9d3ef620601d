/** The occupancy of kernels: how many blocks and clusters run at once. */
import { OUT0, OUT1, readInt32 } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { FunctionName } from '../../ffi/functions.ts';
import type { CUresult } from '../../ffi/results.ts';
import type { Address, CUfunction } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { LaunchConfigStruct } from './launch-config.ts';

/** Options of the occupancy of a kernel. */
export interface OccupancyOptions {
  /** Dynamic shared memory of each block, in bytes. Default 0. */
  readonly sharedBytes?: number;
}

/** The number of blocks on one multiprocessor. The function's context must be current. */
export function activeBlocks(
  handle: CUfunction,
  { threads, sharedBytes }: LaunchConfigStruct,
): number {
  const call = 'cuOccupancyMaxActiveBlocksPerMultiprocessor';
  check(cu[call](OUT0, handle, threads, sharedBytes), call);
  return readInt32(OUT0);
}

/** The number of clusters on the device. As {@link activeBlocks}. */
export function activeClusters(handle: CUfunction, { address }: LaunchConfigStruct): number {
  const call = 'cuOccupancyMaxActiveClusters';
  checkClusterCall(cu[call](OUT0, handle, address), call);
  return readInt32(OUT0);
}

/** The most blocks of a cluster. As {@link activeBlocks}. */
export function clusterBlocks(handle: CUfunction, { address }: LaunchConfigStruct): number {
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
