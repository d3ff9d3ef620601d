/** Graphs: work that is captured from streams and launched repeatedly. */
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
import { needsContext, needsStreamContext, noContext } from './row.ts';

export const graphRows = {
  cuStreamBeginCapture_v2: needsStreamContext(CUstream, CUstreamCaptureMode),
  cuStreamEndCapture: needsStreamContext(CUstream, out(CUgraph)),
  cuStreamIsCapturing: needsStreamContext(CUstream, out(CUstreamCaptureStatus)),
  // Since 11.3
  cuStreamGetCaptureInfo_v2: needsStreamContext(
    CUstream,
    out(CUstreamCaptureStatus),
    out(uint64),
    out(CUgraph),
    CUgraphNodes,
    out(size_t),
  ),
  cuGraphDestroy: noContext(CUgraph),
  cuGraphInstantiateWithFlags: needsContext(out(CUgraphExec), CUgraph, ulonglong),
  cuGraphExecDestroy: noContext(CUgraphExec),
  // Since 12.0
  cuGraphExecUpdate_v2: noContext(CUgraphExec, CUgraph, out(CUgraphExecUpdateResultInfo)),
  cuGraphExecKernelNodeSetParams_v2: needsContext(
    CUgraphExec,
    CUgraphNode,
    CUDA_KERNEL_NODE_PARAMS_v2,
  ),
  cuGraphLaunch: needsStreamContext(CUgraphExec, CUstream),
  cuGraphUpload: needsStreamContext(CUgraphExec, CUstream),
  cuDeviceGraphMemTrim: noContext(CUdevice),
} as const;
