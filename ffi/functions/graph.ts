/** Graphs: work captured from a stream, and launched again and again. */
import {
  CUDA_KERNEL_NODE_PARAMS_v2,
  CUdevice,
  CUgraph,
  CUgraphExec,
  CUgraphExecUpdateResultInfo,
  CUgraphNode,
  CUgraphNodes,
  CUstream,
  CUstreamCaptureMode,
  CUstreamCaptureStatus,
  out,
  size_t,
  uint64,
  ulonglong,
} from '../types.ts';
import { anywhere, inContext, onStream } from './row.ts';

export const graphRows = {
  cuStreamBeginCapture_v2: onStream(CUstream, CUstreamCaptureMode),
  cuStreamEndCapture: onStream(CUstream, out(CUgraph)),
  cuStreamIsCapturing: onStream(CUstream, out(CUstreamCaptureStatus)),
  // Since 11.3
  cuStreamGetCaptureInfo_v2: onStream(
    CUstream,
    out(CUstreamCaptureStatus),
    out(uint64),
    out(CUgraph),
    CUgraphNodes,
    out(size_t),
  ),
  cuGraphDestroy: anywhere(CUgraph),
  cuGraphInstantiateWithFlags: inContext(out(CUgraphExec), CUgraph, ulonglong),
  cuGraphExecDestroy: anywhere(CUgraphExec),
  // Since 12.0
  cuGraphExecUpdate_v2: anywhere(CUgraphExec, CUgraph, out(CUgraphExecUpdateResultInfo)),
  cuGraphExecKernelNodeSetParams_v2: inContext(
    CUgraphExec,
    CUgraphNode,
    CUDA_KERNEL_NODE_PARAMS_v2,
  ),
  cuGraphLaunch: onStream(CUgraphExec, CUstream),
  cuGraphUpload: onStream(CUgraphExec, CUstream),
  cuDeviceGraphMemTrim: anywhere(CUdevice),
} as const;
