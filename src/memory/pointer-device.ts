import { OUT0, readInt32 } from '../../ffi/arena.ts';
import { CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { check } from '../check.ts';
import { initialize } from '../driver.ts';

/** The ordinal of the device that an address is of; undefined where the driver knows of none. */
export function deviceOfPointer(address: number): number | undefined {
  initialize();
  const pointer = address as CUdeviceptr;
  const status = cu.cuPointerGetAttribute(OUT0, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
  if (status === CUresult.CUDA_ERROR_INVALID_VALUE) return undefined;
  check(status, 'cuPointerGetAttribute', () => `finding the device of address ${address}`);
  const ordinal = readInt32(OUT0);
  return ordinal < 0 ? undefined : ordinal;
}
