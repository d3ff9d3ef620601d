/** What the driver is told of memory that is to be mapped. */
import { OUT0, readSize, writeStruct } from '../../ffi/arena.ts';
import {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM,
  CU_MEM_ALLOCATION_TYPE_PINNED,
  CU_MEM_HANDLE_TYPE_NONE,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  CU_MEM_LOCATION_TYPE_DEVICE,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { Address } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Device } from '../device.ts';

/** Writes what memory of a device is made with; answers where. */
export const writeProperties = (device: Device, shareable: boolean): Address =>
  writeStruct('CUmemAllocationProp', {
    type: CU_MEM_ALLOCATION_TYPE_PINNED,
    requestedHandleTypes: shareable
      ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
      : CU_MEM_HANDLE_TYPE_NONE,
    'location.type': CU_MEM_LOCATION_TYPE_DEVICE,
    'location.id': device.handle,
  });

/** What the sizes of a device's virtual memory are multiples of. */
export function granularityOf(device: Device, shareable: boolean): number {
  check(
    cu.cuMemGetAllocationGranularity(
      OUT0,
      writeProperties(device, shareable),
      CU_MEM_ALLOC_GRANULARITY_MINIMUM,
    ),
    'cuMemGetAllocationGranularity',
  );
  return readSize(OUT0);
}
