/** Graphs are the hardware's: no stream captures here. */
import { CU_STREAM_CAPTURE_STATUS_NONE } from '../constants.ts';
import type { Driver } from '../functions.ts';
import { CUresult } from '../results.ts';
import type { HostMemory } from './host.ts';
import type { Queues } from './queues.ts';

const { CUDA_SUCCESS, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_NOT_SUPPORTED } = CUresult;

export type GraphFunctions = Pick<
  Driver,
  | 'cuStreamBeginCapture_v2'
  | 'cuStreamEndCapture'
  | 'cuStreamIsCapturing'
  | 'cuGraphDestroy'
  | 'cuGraphInstantiateWithFlags'
  | 'cuGraphExecDestroy'
  | 'cuGraphExecUpdate_v2'
  | 'cuGraphLaunch'
  | 'cuGraphUpload'
>;

export const graphFunctions = (queues: Queues, host: HostMemory): GraphFunctions => ({
  cuStreamBeginCapture_v2: () => CUDA_ERROR_NOT_SUPPORTED,
  cuStreamEndCapture: () => CUDA_ERROR_NOT_SUPPORTED,
  cuStreamIsCapturing(handle, out) {
    if (!queues.get(handle)) return CUDA_ERROR_INVALID_HANDLE;
    host.setInt32(out, CU_STREAM_CAPTURE_STATUS_NONE);
    return CUDA_SUCCESS;
  },
  cuGraphDestroy: () => CUDA_ERROR_NOT_SUPPORTED,
  cuGraphInstantiateWithFlags: () => CUDA_ERROR_NOT_SUPPORTED,
  cuGraphExecDestroy: () => CUDA_ERROR_NOT_SUPPORTED,
  cuGraphExecUpdate_v2: () => CUDA_ERROR_NOT_SUPPORTED,
  cuGraphLaunch: () => CUDA_ERROR_NOT_SUPPORTED,
  cuGraphUpload: () => CUDA_ERROR_NOT_SUPPORTED,
});
