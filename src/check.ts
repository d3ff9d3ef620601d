/** The only place where a status of the driver becomes an exception. */
import { OUT3, readHandle, readInt32 } from '../ffi/arena.ts';
import { cu, type DriverFunction, driverName, firstVersionWith } from '../ffi/driver.ts';
import type { FunctionName } from '../ffi/functions.ts';
import { stringAt } from '../ffi/native.ts';
import { CUresult } from '../ffi/results.ts';
import type { Address } from '../ffi/types.ts';
import { CudaError, NotSupportedError } from './errors.ts';
import { hintFor } from './hints.ts';
import { noteError } from './lost-context.ts';

/**
 * Throws an error unless `status` is success: for calls of cuffi/ffi.
 *
 * @param call the name of the function, or the function that `declareFunction` has returned
 * @param doing returns what was being done, for the message; called only if the call failed
 * @throws CudaError; NotSupportedError, which names the CUDA version that is needed, if the driver lacks
 * the function
 * @example
 * check(cu.cuCtxSynchronize(), 'cuCtxSynchronize');
 */
export function check(
  status: CUresult,
  call: FunctionName | DriverFunction<never>,
  doing?: () => string,
): void {
  if (status === 0) return;
  const name = typeof call === 'string' ? call : call.name;
  if (status === CUresult.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)
    throw newerDriverNeeded(name, doing?.() ?? `the function ${name}`);
  throw cudaError(status, name, doing?.());
}

/** The error for what a driver without a function cannot do. */
export function newerDriverNeeded(name: string, what: string): NotSupportedError {
  const since = firstVersionWith(name);
  const needed =
    since === undefined
      ? `a driver with ${name}`
      : `a driver of CUDA ${formatVersion(since)} or later, which has ${name}`;
  const found = cu.cuDriverGetVersion(OUT3) === 0 ? `CUDA ${formatVersion(readInt32(OUT3))}` : '';
  return new NotSupportedError(
    `${what} needs ${needed}; ${driverName()} is ${found || 'of an unknown version'}. Update the driver.`,
  );
}

/** `12.4` for 12040. */
const formatVersion = (version: number): string =>
  `${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;

/**
 * The CudaError for a status, with the driver's own description and our hint.
 *
 * @param hint what to do, if the caller knows better than by the call and the status
 */
export function cudaError(
  status: CUresult,
  call: string,
  doing?: string,
  log?: string,
  hint?: string,
): CudaError {
  const error = new CudaError({
    status,
    call,
    description: describeStatus(status),
    doing,
    hint: hint ?? hintFor(call, status),
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
