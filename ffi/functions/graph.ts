/** Graphs: work that is captured from streams and launched repeatedly. */
import {
  CUDA_KERNEL_NODE_PARAMS_v1,
  CUDA_KERNEL_NODE_PARAMS_v2,
  CUdevice,
  CUgraph,
  CUgraphExec,
  CUgraphExecUpdateResult,
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
import {
  needsContext,
  needsStreamContext,
  neverCaptured,
  noContext,
  since,
  unsafeInCapture,
} from './row.ts';

export const graphRows = {
  cuStreamBeginCapture_v2: needsStreamContext(CUstream, CUstreamCaptureMode),
  cuStreamEndCapture: needsStreamContext(CUstream, out(CUgraph)),
  cuStreamIsCapturing: needsStreamContext(CUstream, out(CUstreamCaptureStatus)),
  cuStreamGetCaptureInfo_v2: needsStreamContext(
    CUstream,
    out(CUstreamCaptureStatus),
    out(uint64),
    out(CUgraph),
    CUgraphNodes,
    out(size_t),
  ),
  cuGraphDestroy: noContext(CUgraph),
  cuGraphInstantiateWithFlags: unsafeInCapture(needsContext(out(CUgraphExec), CUgraph, ulonglong)),
  cuGraphExecDestroy: unsafeInCapture(noContext(CUgraphExec)),
  // The forms of drivers before CUDA 12.0. The later struct begins with the earlier one.
  cuGraphExecUpdate: noContext(
    CUgraphExec,
    CUgraph,
    out(CUgraphNode),
    out(CUgraphExecUpdateResult),
  ),
  cuGraphExecKernelNodeSetParams: needsContext(
    CUgraphExec,
    CUgraphNode,
    CUDA_KERNEL_NODE_PARAMS_v1,
  ),
  cuGraphExecUpdate_v2: since(
    12_000,
    noContext(CUgraphExec, CUgraph, out(CUgraphExecUpdateResultInfo)),
  ),
  cuGraphExecKernelNodeSetParams_v2: since(
    12_000,
    needsContext(CUgraphExec, CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v2),
  ),
  cuGraphLaunch: neverCaptured(needsStreamContext(CUgraphExec, CUstream)),
  cuGraphUpload: neverCaptured(needsStreamContext(CUgraphExec, CUstream)),
  cuDeviceGraphMemTrim: noContext(CUdevice),
} as const;
