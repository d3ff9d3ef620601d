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
import { needsStreamContext, noContext, unsafeInCapture } from './row.ts';

export const poolRows = {
  cuDeviceGetDefaultMemPool: noContext(out(CUmemoryPool), CUdevice),
  cuDeviceGetMemPool: noContext(out(CUmemoryPool), CUdevice),
  cuDeviceSetMemPool: noContext(CUdevice, CUmemoryPool),
  cuMemPoolCreate: unsafeInCapture(noContext(out(CUmemoryPool), CUmemPoolProps)),
  cuMemPoolDestroy: unsafeInCapture(noContext(CUmemoryPool)),
  cuMemPoolTrimTo: unsafeInCapture(noContext(CUmemoryPool, size_t)),
  cuMemPoolSetAttribute: unsafeInCapture(noContext(CUmemoryPool, CUmemPool_attribute, pointer)),
  cuMemPoolGetAttribute: unsafeInCapture(noContext(CUmemoryPool, CUmemPool_attribute, pointer)),
  cuMemPoolSetAccess: unsafeInCapture(noContext(CUmemoryPool, CUmemAccessDesc, size_t)),
  cuMemPoolGetAccess: noContext(out(CUmemAccess_flags), CUmemoryPool, out(CUmemLocationNotConst)),

  cuMemAllocAsync: unsafeInCapture(needsStreamContext(out(CUdeviceptr), size_t, CUstream)),
  cuMemAllocFromPoolAsync: unsafeInCapture(
    needsStreamContext(out(CUdeviceptr), size_t, CUmemoryPool, CUstream),
  ),
  cuMemFreeAsync: unsafeInCapture(needsStreamContext(CUdeviceptr, CUstream)),

  cuMemPoolExportToShareableHandle: unsafeInCapture(
    noContext(pointer, CUmemoryPool, CUmemAllocationHandleType, ulonglong),
  ),
  // The value of the pointer is the file descriptor: nothing is read at that address.
  cuMemPoolImportFromShareableHandle: unsafeInCapture(
    noContext(out(CUmemoryPool), pointer, CUmemAllocationHandleType, ulonglong),
  ),
  cuMemPoolExportPointer: unsafeInCapture(noContext(out(CUmemPoolPtrExportData), CUdeviceptr)),
  cuMemPoolImportPointer: unsafeInCapture(
    noContext(out(CUdeviceptr), CUmemoryPool, out(CUmemPoolPtrExportData)),
  ),
} as const;
