import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import { tryAll } from './attempt.ts';
import type { Context } from './context.ts';

/**
 * Closes all that was made in a context, before a reset: the driver keeps virtual memory and pools
 * over one, and only closing gives them back. Both are made without opening the context, so there may
 * be some where it is not open.
 */
export function closeForReset(context: Context, reason: string, isOpen: boolean): void {
  // A context that failed refuses all that follows: the reset is what is left.
  if (isOpen && context.run(() => cu.cuCtxSynchronize()) !== CUresult.CUDA_SUCCESS) return;
  const { activity, releases, resources } = context;
  activity.waitedForAll();
  tryAll([
    () => releases.runAll(),
    () => resources.closeAll(reason),
    // What was closed in a deferral.
    () => releases.runAll(),
    // Pools that keep nothing let go of what was freed when it is waited for.
    () => isOpen && context.synchronizeSync(),
  ]);
}
