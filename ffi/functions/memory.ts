/** Device memory, host memory that the device can access, and managed memory. */
import {
  CUdevice,
  CUdeviceptr,
  CUmem_advise,
  CUpointer_attribute,
  CUstream,
  out,
  pointer,
  size_t,
  uint,
} from '../types.ts';
import {
  needsContext,
  needsStreamContext,
  neverCaptured,
  noContext,
  unsafeInCapture,
} from './row.ts';

export const memoryRows = {
  // Device memory, and what an address is
  cuMemGetInfo_v2: needsContext(out(size_t), out(size_t)),
  cuMemAlloc_v2: unsafeInCapture(needsContext(out(CUdeviceptr), size_t)),
  cuMemAllocPitch_v2: unsafeInCapture(
    needsContext(out(CUdeviceptr), out(size_t), size_t, size_t, uint),
  ),
  cuMemFree_v2: unsafeInCapture(noContext(CUdeviceptr)),
  cuMemGetAddressRange_v2: needsContext(out(CUdeviceptr), out(size_t), CUdeviceptr),
  cuPointerGetAttribute: noContext(pointer, CUpointer_attribute, CUdeviceptr),

  // Host memory
  cuMemHostAlloc: unsafeInCapture(needsContext(out(pointer), size_t, uint)),
  cuMemFreeHost: unsafeInCapture(noContext(pointer)),
  cuMemHostGetFlags: needsContext(out(uint), pointer),
  cuMemHostRegister_v2: unsafeInCapture(needsContext(pointer, size_t, uint)),
  cuMemHostUnregister: unsafeInCapture(noContext(pointer)),
  cuMemHostGetDevicePointer_v2: needsContext(out(CUdeviceptr), pointer, uint),

  // Managed memory. cuMemPrefetchAsync and cuMemAdvise take a device ordinal (or the CPU, -1). Every
  // driver since CUDA 8 has them. Their _v2 forms take a CUmemLocation by value, which can be a NUMA
  // node, but need 12.2.
  cuMemAllocManaged: unsafeInCapture(needsContext(out(CUdeviceptr), size_t, uint)),
  cuMemPrefetchAsync: neverCaptured(needsStreamContext(CUdeviceptr, size_t, CUdevice, CUstream)),
  cuMemAdvise: unsafeInCapture(needsContext(CUdeviceptr, size_t, CUmem_advise, CUdevice)),
} as const;
