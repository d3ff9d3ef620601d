/** The only place where a status of the driver becomes an exception. */
import { OUT3, readHandle } from '../ffi/arena.ts';
import { cu } from '../ffi/driver.ts';
import type { FunctionName } from '../ffi/functions.ts';
import { stringAt } from '../ffi/native.ts';
import { CUresult } from '../ffi/results.ts';
import type { Address } from '../ffi/types.ts';
import { CudaError } from './errors.ts';
import { hintFor } from './hints.ts';
import { noteError } from './lost-context.ts';

/**
 * Throws a CudaError unless `status` is success.
 *
 * @param doing returns what cuffi was doing, for the message; called only if the call failed
 */
export function check(status: CUresult, call: FunctionName, doing?: () => string): void {
  if (status !== 0) throw cudaError(status, call, doing?.());
}

/** The CudaError for a status, with the driver's own description and our hint. */
export function cudaError(
  status: CUresult,
  call: FunctionName,
  doing?: string,
  log?: string,
): CudaError {
  const error = new CudaError({
    status,
    call,
    description: describeStatus(status),
    doing,
    hint: hintFor(call, status),
    log,
  });
  noteError(error);
  return error;
}

const describeStatus = (status: CUresult): string =>
  cu.cuGetErrorString(status, OUT3) === CUresult.CUDA_SUCCESS
    ? stringAt(readHandle<Address>(OUT3))
    : 'unknown error';

/** Whether a query says that the work is done. @throws CudaError unless it is done or not ready */
export function isReady(status: CUresult, call: FunctionName): boolean {
  if (status === CUresult.CUDA_SUCCESS) return true;
  if (status === CUresult.CUDA_ERROR_NOT_READY) return false;
  throw cudaError(status, call);
}
