/** Allocation with one retry: if the device is out of memory, pending releases run first. */

import type { FunctionName } from '../../ffi/functions.ts';
import { CUresult } from '../../ffi/results.ts';
import { check, cudaError } from '../check.ts';
import type { Context } from '../context.ts';
import { assertNotCapturing } from '../graph-capture.ts';
import { formatBytes } from '../validate.ts';

/** Options of {@link allocateWithRetry}. */
export interface RetryOptions {
  /** The status of a first call to `allocate`, if the caller already made one. */
  readonly firstStatus?: CUresult | undefined;
  /** Extra text for the error, for allocations with a limit of their own. */
  readonly describeLimits?: () => string;
}

/**
 * Calls `allocate`. If the driver is out of memory, runs pending releases and calls it again.
 *
 * @throws CudaError with the requested size, the free memory and the pending releases
 */
export function allocateWithRetry(
  context: Context,
  call: FunctionName,
  byteLength: number,
  allocate: () => CUresult,
  { firstStatus, describeLimits }: RetryOptions = {},
): void {
  assertNotCapturing('allocating memory');
  const { releases } = context;
  let status = firstStatus ?? allocate();
  if (status === CUresult.CUDA_ERROR_OUT_OF_MEMORY && releases.size > 0) {
    releases.drainReady(true);
    status = allocate();
  }
  if (status === CUresult.CUDA_ERROR_OUT_OF_MEMORY) {
    const { free } = context.deviceMemoryInfo();
    throw cudaError(
      status,
      call,
      `allocating ${formatBytes(byteLength)} with ${formatBytes(free)} free${describeLimits?.() ?? ''}${describePendingReleases(context)}`,
    );
  }
  check(status, call, () => `allocating ${formatBytes(byteLength)}`);
}

/** The pending releases for an error message, in parentheses; empty without any. */
export function describePendingReleases({ releases }: Context): string {
  const { size, byteLength } = releases;
  if (size === 0) return '';
  const [what, waits] = size === 1 ? ['release', 'waits'] : ['releases', 'wait'];
  const bytes = byteLength > 0 ? ` of ${formatBytes(byteLength)}` : '';
  const until = releases.isDeferred
    ? 'the end of a deferCleanup() scope'
    : 'the GPU: await context.flush()';
  return ` (${size} ${what}${bytes} ${waits} for ${until})`;
}
