/** The driver functions of streams, and host functions. */
import { CU_STREAM_NON_BLOCKING } from '../constants.ts';
import type { Driver } from '../functions.ts';
import { libc, libcSymbol } from '../linux/libc.ts';
import { CUresult } from '../results.ts';
import type { Contexts } from './context.ts';
import type { HostMemory } from './host-memory.ts';
import type { StreamQueues } from './stream-queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_NOT_READY,
  CUDA_ERROR_NOT_SUPPORTED,
} = CUresult;

// Lower numbers come first.
const LEAST_PRIORITY = 0;
const GREATEST_PRIORITY = -5;

/** The nearest supported priority. */
const clampPriority = (priority: number): number =>
  Math.min(LEAST_PRIORITY, Math.max(GREATEST_PRIORITY, priority));

export type StreamFunctions = Pick<
  Driver,
  | 'cuCtxSynchronize'
  | 'cuCtxGetStreamPriorityRange'
  | 'cuStreamCreateWithPriority'
  | 'cuStreamDestroy_v2'
  | 'cuStreamGetPriority'
  | 'cuStreamGetFlags'
  | 'cuStreamGetCtx'
  | 'cuStreamQuery'
  | 'cuStreamSynchronize'
>;

export const streamFunctions = (
  queues: StreamQueues,
  contexts: Contexts,
  host: HostMemory,
): StreamFunctions => ({
  cuCtxSynchronize() {
    queues.drain(contexts.current);
    queues.notifySynchronized(true);
    return CUDA_SUCCESS;
  },
  cuCtxGetStreamPriorityRange(least, greatest) {
    if (least !== 0) host.setInt32(least, LEAST_PRIORITY);
    if (greatest !== 0) host.setInt32(greatest, GREATEST_PRIORITY);
    return CUDA_SUCCESS;
  },
  cuStreamCreateWithPriority(out, flags, priority) {
    if ((flags & ~CU_STREAM_NON_BLOCKING) !== 0) return CUDA_ERROR_INVALID_VALUE;
    const stream = queues.create(contexts.current, flags, clampPriority(priority));
    host.setUint64(out, stream.handle);
    return CUDA_SUCCESS;
  },
  cuStreamDestroy_v2: (handle) =>
    queues.destroy(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE,
  cuStreamGetPriority(handle, out) {
    const stream = queues.get(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    host.setInt32(out, stream.priority);
    return CUDA_SUCCESS;
  },
  cuStreamGetFlags(handle, out) {
    const stream = queues.get(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    host.setInt32(out, stream.flags);
    return CUDA_SUCCESS;
  },
  cuStreamGetCtx(handle, out) {
    const stream = queues.get(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    host.setUint64(out, stream.context.handle);
    return CUDA_SUCCESS;
  },
  cuStreamQuery(handle) {
    const stream = queues.get(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return queues.isIdle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  },
  cuStreamSynchronize(handle) {
    const stream = queues.get(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    queues.synchronize(stream);
    queues.notifySynchronized();
    return CUDA_SUCCESS;
  },
});

// ---- Host functions ----

/**
 * Host functions in stream order. Only libc's `sem_post`, `close` and `fflush` are supported: other
 * addresses would have to be called blindly, and return NOT_SUPPORTED.
 */
export function hostCallbackFunctions(
  queues: StreamQueues,
  host: HostMemory,
): Pick<Driver, 'cuLaunchHostFunc'> {
  const callbacks = new Map<number, (data: number) => void>([
    [
      libcSymbol('sem_post'),
      (data) => {
        if (host.isReadable(data)) libc.sem_post(data);
      },
    ],
    [libcSymbol('close'), (data) => libc.close(data)],
    [
      libcSymbol('fflush'),
      (data) => {
        if (host.isReadable(data)) libc.fflush(data);
      },
    ],
  ]);
  return {
    cuLaunchHostFunc(handle, address, data) {
      const stream = queues.get(handle);
      if (!stream) return CUDA_ERROR_INVALID_HANDLE;
      if (address === 0) return CUDA_ERROR_INVALID_VALUE;
      const call = callbacks.get(address);
      if (!call) return CUDA_ERROR_NOT_SUPPORTED;
      queues.enqueue(
        stream,
        () => {
          call(data);
          return true;
        },
        'host',
      );
      return CUDA_SUCCESS;
    },
  };
}
