import { OUT0, readInt32 } from '../../ffi/arena.ts';
import { CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { check } from '../check.ts';
import { initialize } from '../driver.ts';

/**
 * The ordinal of the device that an address is of.
 *
 * @throws CudaError CUDA_ERROR_INVALID_VALUE for one that the driver does not know
 */
export function deviceOfPointer(address: number): number {
  initialize();
  check(
    cu.cuPointerGetAttribute(OUT0, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address as CUdeviceptr),
    'cuPointerGetAttribute',
    () => `looking for memory at address ${address}`,
  );
  return readInt32(OUT0);
}
