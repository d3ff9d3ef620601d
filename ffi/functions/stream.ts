/** Streams, and events in them. */
import {
  CUcontext,
  CUdeviceptr,
  CUevent,
  CUhostFn,
  CUstream,
  float,
  int,
  out,
  pointer,
  size_t,
  uint,
  uint32,
  uint64,
} from '../types.ts';
import {
  needsContext,
  needsStreamContext,
  neverCaptured,
  noContext,
  since,
  unsafeInCapture,
} from './row.ts';

export const streamRows = {
  // Streams
  cuStreamCreateWithPriority: needsContext(out(CUstream), uint, int),
  cuStreamDestroy_v2: noContext(CUstream),
  cuStreamGetPriority: needsStreamContext(CUstream, out(int)),
  cuStreamGetFlags: neverCaptured(needsStreamContext(CUstream, out(uint))),
  cuStreamGetCtx: needsStreamContext(CUstream, out(CUcontext)),
  cuStreamQuery: neverCaptured(unsafeInCapture(needsStreamContext(CUstream))),
  cuStreamSynchronize: neverCaptured(unsafeInCapture(needsStreamContext(CUstream))),
  cuStreamWaitEvent: needsStreamContext(CUstream, CUevent, uint),
  cuStreamWaitValue32_v2: since(11_070, needsStreamContext(CUstream, CUdeviceptr, uint32, uint)),
  cuStreamWriteValue32_v2: since(11_070, needsStreamContext(CUstream, CUdeviceptr, uint32, uint)),
  cuStreamWaitValue64_v2: since(11_070, needsStreamContext(CUstream, CUdeviceptr, uint64, uint)),
  cuStreamWriteValue64_v2: since(11_070, needsStreamContext(CUstream, CUdeviceptr, uint64, uint)),
  cuStreamAttachMemAsync: needsStreamContext(CUstream, CUdeviceptr, size_t, uint),
  cuLaunchHostFunc: needsStreamContext(CUstream, CUhostFn, pointer),

  // Events
  cuEventCreate: needsContext(out(CUevent), uint),
  cuEventDestroy_v2: noContext(CUevent),
  cuEventRecord: needsStreamContext(CUevent, CUstream),
  cuEventQuery: unsafeInCapture(noContext(CUevent)),
  cuEventSynchronize: unsafeInCapture(noContext(CUevent)),
  cuEventElapsedTime: noContext(out(float), CUevent, CUevent),
} as const;
