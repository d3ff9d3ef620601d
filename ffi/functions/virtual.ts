/** Virtual memory: addresses reserved, memory made, one mapped to the other, access given. */
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
import { anywhere } from './row.ts';

export const virtualRows = {
  cuMemGetAllocationGranularity: anywhere(
    out(size_t),
    CUmemAllocationProp,
    CUmemAllocationGranularity_flags,
  ),
  cuMemAddressReserve: anywhere(out(CUdeviceptr), size_t, size_t, CUdeviceptr, ulonglong),
  cuMemAddressFree: anywhere(CUdeviceptr, size_t),
  cuMemCreate: anywhere(out(CUmemGenericAllocationHandle), size_t, CUmemAllocationProp, ulonglong),
  cuMemRelease: anywhere(CUmemGenericAllocationHandle),
  cuMemMap: anywhere(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, ulonglong),
  cuMemUnmap: anywhere(CUdeviceptr, size_t),
  cuMemSetAccess: anywhere(CUdeviceptr, size_t, CUmemAccessDesc, size_t),
  cuMemGetAccess: anywhere(out(ulonglong), CUmemLocation, CUdeviceptr),
  cuMemExportToShareableHandle: anywhere(
    pointer,
    CUmemGenericAllocationHandle,
    CUmemAllocationHandleType,
    ulonglong,
  ),
  // The descriptor itself is the pointer's value, as for pools.
  cuMemImportFromShareableHandle: anywhere(
    out(CUmemGenericAllocationHandle),
    pointer,
    CUmemAllocationHandleType,
  ),
} as const;
