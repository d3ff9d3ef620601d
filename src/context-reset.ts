import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import { tryAll } from './attempt.ts';
import type { Context } from './context.ts';

/**
 * Closes all that was made in a context, before a reset: the driver keeps virtual memory and pools
 * over one, and only closing gives them back.
 */
export function closeForReset(context: Context, reason: string): void {
  // A context that failed refuses all that follows: the reset is what is left.
  if (context.run(() => cu.cuCtxSynchronize()) !== CUresult.CUDA_SUCCESS) return;
  const { activity, releases, resources } = context;
  activity.waitedForAll();
  tryAll([
    () => releases.runAll(),
    () => resources.closeAll(reason),
    // What was closed in a deferral.
    () => releases.runAll(),
    // Pools that keep nothing let go of what was freed when it is waited for.
    () => context.synchronizeSync(),
  ]);
}
