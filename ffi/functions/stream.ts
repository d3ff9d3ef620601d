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
import { anywhere, inContext, onStream } from './row.ts';

export const streamRows = {
  // Streams
  cuStreamCreateWithPriority: inContext(out(CUstream), uint, int),
  cuStreamDestroy_v2: anywhere(CUstream),
  cuStreamGetPriority: onStream(CUstream, out(int)),
  cuStreamGetFlags: onStream(CUstream, out(uint)),
  cuStreamGetCtx: onStream(CUstream, out(CUcontext)),
  cuStreamQuery: onStream(CUstream),
  cuStreamSynchronize: onStream(CUstream),
  cuStreamWaitEvent: onStream(CUstream, CUevent, uint),
  cuStreamWaitValue32_v2: onStream(CUstream, CUdeviceptr, uint32, uint),
  cuStreamWriteValue32_v2: onStream(CUstream, CUdeviceptr, uint32, uint),
  cuStreamWaitValue64_v2: onStream(CUstream, CUdeviceptr, uint64, uint),
  cuStreamWriteValue64_v2: onStream(CUstream, CUdeviceptr, uint64, uint),
  cuStreamAttachMemAsync: onStream(CUstream, CUdeviceptr, size_t, uint),
  cuLaunchHostFunc: onStream(CUstream, CUhostFn, pointer),

  // Events
  cuEventCreate: inContext(out(CUevent), uint),
  cuEventDestroy_v2: anywhere(CUevent),
  cuEventRecord: onStream(CUevent, CUstream),
  cuEventQuery: anywhere(CUevent),
  cuEventSynchronize: anywhere(CUevent),
  cuEventElapsedTime: anywhere(out(float), CUevent, CUevent),
} as const;
