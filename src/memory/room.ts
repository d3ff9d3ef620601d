/** Allocations that may find no room: what waits to be freed goes first, then the error says why. */
import type { FunctionName } from '../../ffi/functions.ts';
import { CUresult } from '../../ffi/results.ts';
import { check, cudaError } from '../check.ts';
import type { Context } from '../context.ts';

/**
 * Calls `allocate`; where the driver is out of memory, once more after releasing what can be.
 *
 * @param limits what else the error says, where more than the device's memory limits it
 * @throws CudaError that says how much was asked, what is free and what waits to be freed
 */
export function withRoom(
  context: Context,
  call: FunctionName,
  byteLength: number,
  allocate: () => CUresult,
  limits: () => string = () => '',
): void {
  const { releases } = context;
  let status = allocate();
  if (status === CUresult.CUDA_ERROR_OUT_OF_MEMORY && releases.size > 0) {
    releases.collect();
    status = allocate();
  }
  if (status === CUresult.CUDA_ERROR_OUT_OF_MEMORY) {
    const pending = releases.size;
    const { free } = context.deviceMemoryInfo();
    throw cudaError(
      status,
      call,
      `allocating ${byteLength} bytes with ${free} free` +
        limits() +
        (pending > 0 ? ` (${pending} releases wait for the GPU: await context.flush())` : ''),
    );
  }
  check(status, call, () => `allocating ${byteLength} bytes`);
}
