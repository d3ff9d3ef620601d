/** Memory pools: stream-ordered allocation, access, and sharing with other processes. */
import {
  CUdevice,
  CUdeviceptr,
  CUmemAccess_flags,
  CUmemAccessDesc,
  CUmemAllocationHandleType,
  CUmemLocationNotConst,
  CUmemoryPool,
  CUmemPool_attribute,
  CUmemPoolProps,
  CUmemPoolPtrExportData,
  CUstream,
  out,
  pointer,
  size_t,
  ulonglong,
} from '../types.ts';
import { anywhere, onStream } from './row.ts';

export const poolRows = {
  cuDeviceGetDefaultMemPool: anywhere(out(CUmemoryPool), CUdevice),
  cuDeviceGetMemPool: anywhere(out(CUmemoryPool), CUdevice),
  cuDeviceSetMemPool: anywhere(CUdevice, CUmemoryPool),
  cuMemPoolCreate: anywhere(out(CUmemoryPool), CUmemPoolProps),
  cuMemPoolDestroy: anywhere(CUmemoryPool),
  cuMemPoolTrimTo: anywhere(CUmemoryPool, size_t),
  cuMemPoolSetAttribute: anywhere(CUmemoryPool, CUmemPool_attribute, pointer),
  cuMemPoolGetAttribute: anywhere(CUmemoryPool, CUmemPool_attribute, pointer),
  cuMemPoolSetAccess: anywhere(CUmemoryPool, CUmemAccessDesc, size_t),
  cuMemPoolGetAccess: anywhere(out(CUmemAccess_flags), CUmemoryPool, out(CUmemLocationNotConst)),

  cuMemAllocAsync: onStream(out(CUdeviceptr), size_t, CUstream),
  cuMemAllocFromPoolAsync: onStream(out(CUdeviceptr), size_t, CUmemoryPool, CUstream),
  cuMemFreeAsync: onStream(CUdeviceptr, CUstream),

  cuMemPoolExportToShareableHandle: anywhere(
    pointer,
    CUmemoryPool,
    CUmemAllocationHandleType,
    ulonglong,
  ),
  // The descriptor itself is the pointer's value: nothing is read at that address.
  cuMemPoolImportFromShareableHandle: anywhere(
    out(CUmemoryPool),
    pointer,
    CUmemAllocationHandleType,
    ulonglong,
  ),
  cuMemPoolExportPointer: anywhere(out(CUmemPoolPtrExportData), CUdeviceptr),
  cuMemPoolImportPointer: anywhere(out(CUdeviceptr), CUmemoryPool, out(CUmemPoolPtrExportData)),
} as const;
