/** Virtual memory: reserving addresses, creating physical memory, mapping it, setting access. */
import {
  CUdeviceptr,
  CUmemAccessDesc,
  CUmemAllocationGranularity_flags,
  CUmemAllocationHandleType,
  CUmemAllocationProp,
  CUmemGenericAllocationHandle,
  CUmemLocation,
  out,
  pointer,
  size_t,
  ulonglong,
} from '../types.ts';
import { noContext } from './row.ts';

export const virtualRows = {
  cuMemGetAllocationGranularity: noContext(
    out(size_t),
    CUmemAllocationProp,
    CUmemAllocationGranularity_flags,
  ),
  cuMemAddressReserve: noContext(out(CUdeviceptr), size_t, size_t, CUdeviceptr, ulonglong),
  cuMemAddressFree: noContext(CUdeviceptr, size_t),
  cuMemCreate: noContext(out(CUmemGenericAllocationHandle), size_t, CUmemAllocationProp, ulonglong),
  cuMemRelease: noContext(CUmemGenericAllocationHandle),
  cuMemMap: noContext(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, ulonglong),
  cuMemUnmap: noContext(CUdeviceptr, size_t),
  cuMemSetAccess: noContext(CUdeviceptr, size_t, CUmemAccessDesc, size_t),
  cuMemGetAccess: noContext(out(ulonglong), CUmemLocation, CUdeviceptr),
  cuMemExportToShareableHandle: noContext(
    pointer,
    CUmemGenericAllocationHandle,
    CUmemAllocationHandleType,
    ulonglong,
  ),
  // The value of the pointer is the file descriptor, as for pools.
  cuMemImportFromShareableHandle: noContext(
    out(CUmemGenericAllocationHandle),
    pointer,
    CUmemAllocationHandleType,
  ),
} as const;
