/** Copies and fills, of one dimension to three, on one device or between two. */
import {
  CUcontext,
  CUDA_MEMCPY2D,
  CUDA_MEMCPY3D,
  CUDA_MEMCPY3D_PEER,
  CUdeviceptr,
  CUstream,
  constPointer,
  pointer,
  size_t,
  uint,
  uint8,
  uint16,
} from '../types.ts';
import {
  needsContext,
  needsStreamContext,
  neverCaptured,
  withByteCount,
  withByteCountOf,
} from './row.ts';

export const copyRows = {
  cuMemcpyHtoD_v2: withByteCount(needsContext(CUdeviceptr, constPointer, size_t), 2),
  cuMemcpyDtoH_v2: withByteCount(needsContext(pointer, CUdeviceptr, size_t), 2),
  cuMemcpyHtoDAsync_v2: withByteCount(
    needsStreamContext(CUdeviceptr, constPointer, size_t, CUstream),
    2,
  ),
  cuMemcpyDtoHAsync_v2: withByteCount(
    needsStreamContext(pointer, CUdeviceptr, size_t, CUstream),
    2,
  ),
  cuMemcpyDtoDAsync_v2: withByteCount(
    needsStreamContext(CUdeviceptr, CUdeviceptr, size_t, CUstream),
    2,
  ),
  cuMemcpyPeerAsync: neverCaptured(
    withByteCount(
      needsStreamContext(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream),
      4,
    ),
  ),

  // cuMemcpy2D may refuse pitches that differ from those of cuMemAllocPitch. This form takes any.
  cuMemcpy2DUnaligned_v2: withByteCountOf('CUDA_MEMCPY2D', needsContext(CUDA_MEMCPY2D)),
  cuMemcpy2DAsync_v2: withByteCountOf('CUDA_MEMCPY2D', needsStreamContext(CUDA_MEMCPY2D, CUstream)),
  cuMemcpy3D_v2: withByteCountOf('CUDA_MEMCPY3D', needsContext(CUDA_MEMCPY3D)),
  cuMemcpy3DAsync_v2: withByteCountOf('CUDA_MEMCPY3D', needsStreamContext(CUDA_MEMCPY3D, CUstream)),
  cuMemcpy3DPeerAsync: withByteCountOf(
    'CUDA_MEMCPY3D_PEER',
    needsStreamContext(CUDA_MEMCPY3D_PEER, CUstream),
  ),

  cuMemsetD8Async: withByteCount(needsStreamContext(CUdeviceptr, uint8, size_t, CUstream), 2),
  cuMemsetD16Async: withByteCount(needsStreamContext(CUdeviceptr, uint16, size_t, CUstream), 2, 2),
  cuMemsetD32Async: withByteCount(needsStreamContext(CUdeviceptr, uint, size_t, CUstream), 2, 4),
  cuMemsetD2D8Async: withByteCount(
    needsStreamContext(CUdeviceptr, size_t, uint8, size_t, size_t, CUstream),
    3,
    1,
    4,
  ),
  cuMemsetD2D16Async: withByteCount(
    needsStreamContext(CUdeviceptr, size_t, uint16, size_t, size_t, CUstream),
    3,
    2,
    4,
  ),
  cuMemsetD2D32Async: withByteCount(
    needsStreamContext(CUdeviceptr, size_t, uint, size_t, size_t, CUstream),
    3,
    4,
    4,
  ),
} as const;
