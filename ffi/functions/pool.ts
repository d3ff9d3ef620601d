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
import { needsStreamContext, noContext } from './row.ts';

export const poolRows = {
  cuDeviceGetDefaultMemPool: noContext(out(CUmemoryPool), CUdevice),
  cuDeviceGetMemPool: noContext(out(CUmemoryPool), CUdevice),
  cuDeviceSetMemPool: noContext(CUdevice, CUmemoryPool),
  cuMemPoolCreate: noContext(out(CUmemoryPool), CUmemPoolProps),
  cuMemPoolDestroy: noContext(CUmemoryPool),
  cuMemPoolTrimTo: noContext(CUmemoryPool, size_t),
  cuMemPoolSetAttribute: noContext(CUmemoryPool, CUmemPool_attribute, pointer),
  cuMemPoolGetAttribute: noContext(CUmemoryPool, CUmemPool_attribute, pointer),
  cuMemPoolSetAccess: noContext(CUmemoryPool, CUmemAccessDesc, size_t),
  cuMemPoolGetAccess: noContext(out(CUmemAccess_flags), CUmemoryPool, out(CUmemLocationNotConst)),

  cuMemAllocAsync: needsStreamContext(out(CUdeviceptr), size_t, CUstream),
  cuMemAllocFromPoolAsync: needsStreamContext(out(CUdeviceptr), size_t, CUmemoryPool, CUstream),
  cuMemFreeAsync: needsStreamContext(CUdeviceptr, CUstream),

  cuMemPoolExportToShareableHandle: noContext(
    pointer,
    CUmemoryPool,
    CUmemAllocationHandleType,
    ulonglong,
  ),
  // The value of the pointer is the file descriptor: nothing is read at that address.
  cuMemPoolImportFromShareableHandle: noContext(
    out(CUmemoryPool),
    pointer,
    CUmemAllocationHandleType,
    ulonglong,
  ),
  cuMemPoolExportPointer: noContext(out(CUmemPoolPtrExportData), CUdeviceptr),
  cuMemPoolImportPointer: noContext(out(CUdeviceptr), CUmemoryPool, out(CUmemPoolPtrExportData)),
} as const;
