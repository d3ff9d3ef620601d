/** How much of a device a kernel can use at once. */
import { OUT0, OUT1, readInt32 } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { Address, CUfunction } from '../../ffi/types.ts';
import { checkInteger } from '../arguments.ts';
import { check } from '../check.ts';
import type { Extents3 } from './launch-config.ts';

/** Options of the occupancy of a kernel. */
export interface OccupancyOptions {
  /** Dynamic shared memory of each block, in bytes. Default 0. */
  readonly sharedBytes?: number;
}

/** The threads of a block. @throws TypeError, RangeError */
export function threadsOf(block: Extents3): number {
  const extents = typeof block === 'number' ? [block] : block;
  return extents.reduce<number>(
    (product, extent) => product * checkInteger(extent ?? 1, 'block', 1, 1024),
    1,
  );
}

/** The blocks that run on one multiprocessor; the context of the function is current. */
export function activeBlocks(handle: CUfunction, threads: number, sharedBytes: number): number {
  const call = 'cuOccupancyMaxActiveBlocksPerMultiprocessor';
  check(cu[call](OUT0, handle, threads, sharedBytes), call);
  return readInt32(OUT0);
}

/** A block with which most threads run at once, and the fewest such blocks that fill the device. */
export interface SuggestedBlock {
  readonly blockSize: number;
  readonly minGridSize: number;
}

/** As {@link activeBlocks}: the context of the function is current. */
export function suggestBlock(
  handle: CUfunction,
  sharedBytes: number,
  maxBlockSize: number,
): SuggestedBlock {
  const call = 'cuOccupancyMaxPotentialBlockSize';
  // The shared memory is the same whatever the block: no function of its size is called.
  check(cu[call](OUT0, OUT1, handle, 0 as Address, sharedBytes, maxBlockSize), call);
  return { blockSize: readInt32(OUT1), minGridSize: readInt32(OUT0) };
}
