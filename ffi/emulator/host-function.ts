/** Host functions in a stream's order. */
import type { Driver } from '../functions.ts';
import { libc, libcSymbol } from '../linux/libc.ts';
import { CUresult } from '../results.ts';
import type { HostMemory } from './host.ts';
import type { StreamQueues } from './queues.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_NOT_SUPPORTED,
} = CUresult;

/**
 * Calls libc's `sem_post` and `close`, by their addresses; code at any other address would have to
 * be jumped into blindly, and answers NOT_SUPPORTED.
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
