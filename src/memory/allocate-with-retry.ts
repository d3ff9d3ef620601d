/** Allocations that may find no room: what waits to be freed goes first, then the error says why. */
import type { FunctionName } from '../../ffi/functions.ts';
import { CUresult } from '../../ffi/results.ts';
import { check, cudaError } from '../check.ts';
import type { Context } from '../context.ts';
import { assertNotCapturing } from '../graph-capture.ts';

/** What {@link allocateWithRetry} is told besides. */
export interface RetryOptions {
  /** How `allocate` has answered already, where it was called. */
  readonly firstStatus?: CUresult | undefined;
  /** What else the error says, where more than the device's memory limits it. */
  readonly describeLimits?: () => string;
}

/**
 * Calls `allocate`; where the driver is out of memory, once more after releasing what can be.
 *
 * @throws CudaError that says how much was asked, what is free and what waits to be freed
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
      `allocating ${byteLength} bytes with ${free} free${describeLimits?.() ?? ''}${describePendingReleases(context)}`,
    );
  }
  check(status, call, () => `allocating ${byteLength} bytes`);
}

/** What waits to be released, for messages: nothing, or in brackets. */
export function describePendingReleases({ releases }: Context): string {
  const { size, byteLength } = releases;
  if (size === 0) return '';
  const [what, waits] = size === 1 ? ['release', 'waits'] : ['releases', 'wait'];
  const bytes = byteLength > 0 ? ` of ${byteLength} bytes` : '';
  const until = releases.isDeferred
    ? 'the end of a deferCleanup() scope'
    : 'the GPU: await context.flush()';
  return ` (${size} ${what}${bytes} ${waits} for ${until})`;
}
