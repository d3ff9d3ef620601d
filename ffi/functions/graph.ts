/** Graphs: work captured from a stream, and launched again and again. */
import {
  CUgraph,
  CUgraphExec,
  CUgraphExecUpdateResultInfo,
  CUstream,
  CUstreamCaptureMode,
  CUstreamCaptureStatus,
  out,
  ulonglong,
} from '../types.ts';
import { inContext, onStream } from './row.ts';

export const graphRows = {
  cuStreamBeginCapture_v2: onStream(CUstream, CUstreamCaptureMode),
  cuStreamEndCapture: onStream(CUstream, out(CUgraph)),
  cuStreamIsCapturing: onStream(CUstream, out(CUstreamCaptureStatus)),
  cuGraphDestroy: inContext(CUgraph),
  cuGraphInstantiateWithFlags: inContext(out(CUgraphExec), CUgraph, ulonglong),
  cuGraphExecDestroy: inContext(CUgraphExec),
  // Since 12.0
  cuGraphExecUpdate_v2: inContext(CUgraphExec, CUgraph, out(CUgraphExecUpdateResultInfo)),
  cuGraphLaunch: inContext(CUgraphExec, CUstream),
  cuGraphUpload: inContext(CUgraphExec, CUstream),
} as const;
