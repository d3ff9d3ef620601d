import type { Address } from '../../../ffi/types.ts';
import { releaseQuietly } from '../../resource.ts';
import { devicePointerOf } from '../page-lock.ts';
import { AutoFreePointer, unownedHold } from './auto-free-pointer.ts';
import type { PointerInit } from './memory-pointer.ts';
import { checkPlace } from './references.ts';

/**
 * Page-locked host memory that the device reaches too, as numba's `MappedMemory`: `memhostalloc`
 * and `mempin` answer with one for `{ mapped: true }`. It is made of the host's address, and asks
 * the driver for the device's.
 *
 * @throws CudaError where the driver does not know the memory, TypeError or RangeError for what is
 * no range: the finalizer has been called then
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export class MappedPointer extends AutoFreePointer {
  readonly hostPointer: Address;

  /** @param init with the host's address as `pointer` */
  constructor(init: PointerInit) {
    const hold = unownedHold('MappedPointer', init);
    const { pointer: hostPointer } = hold.init;
    const pointer = reached(hold.init, hold.release);
    super(init, { ...hold, init: { ...hold.init, pointer } });
    this.hostPointer = hostPointer as Address;
  }
}

function reached(init: PointerInit, free: () => void): number {
  try {
    checkPlace(init);
    return devicePointerOf(init.context, init.pointer as Address);
  } catch (error) {
    releaseQuietly(free);
    throw error;
  }
}
