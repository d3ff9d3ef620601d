/** What descriptors of pools may name. */
import { fromEnvironment } from '../release-limits.ts';
import { type IpcDescriptor, type IpcPoolDescriptor, sealDescriptor } from './descriptor.ts';
import type { Obstacle } from './support.ts';

/** The pool itself, of the descriptor of its memory. */
export function ofPool(descriptor: IpcPoolDescriptor): IpcPoolDescriptor {
  const { layout: _, readyEvent: __, ...fields } = descriptor;
  const nothing = { baseByteLength: 0, byteOffset: 0, byteLength: 0, bufferId: 0, generation: 0 };
  return sealDescriptor<'pool'>({ ...fields, ...nothing, access: 'read-write', handle: null });
}

/**
 * How many bytes one allocation of a pool may have that goes to another process. Of a larger one the
 * driver ends the process that opens it: SIGSEGV inside cuMemPoolImportPointer. Seen with driver 580,
 * with 5.25 GiB and above, not in each run; 5 GiB always works. Neither the size of the pool matters nor
 * what else is in it.
 * A driver that was not tried is taken to do the same.
 */
const KNOWN_TO_WORK = 5 * 2 ** 30;
const LIMIT = 'CUFFI_POOL_SHARE_LIMIT';

/**
 * Why an allocation of a pool is too large to go to another process; undefined where it is not.
 *
 * @param byteLength of the whole allocation
 * @throws RangeError where the limit of the environment is not a number
 */
export function sizeObstacle(byteLength: number): Obstacle | undefined {
  // The environment is not read for what works anyway: that costs more than the rest.
  if (byteLength <= KNOWN_TO_WORK) return undefined;
  const limit = Math.max(KNOWN_TO_WORK, fromEnvironment(LIMIT, KNOWN_TO_WORK));
  if (byteLength <= limit) return undefined;
  return {
    code: 'not-supported',
    reason:
      `${byteLength} bytes of a memory pool, in one allocation, cannot be shared: above ${limit} bytes ` +
      'the driver ends the process that opens it (SIGSEGV in cuMemPoolImportPointer, seen with driver 580)',
    remedy:
      'Share virtual memory (VirtualMemory.reserve(byteLength, { shareable: true })), or several ' +
      `allocations. If the driver is known to open larger ones, set ${LIMIT} to the bytes of the ` +
      'largest in both processes.',
  };
}

/** As {@link sizeObstacle}, of what a descriptor says of its allocation. */
export const poolObstacle = (descriptor: IpcDescriptor): Obstacle | undefined =>
  descriptor.kind === 'pool' ? sizeObstacle(descriptor.baseByteLength) : undefined;
