/** Freeing plain device memory beside a stream that is held up. */
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { ownStream } from './own-stream.ts';

/**
 * Frees plain device memory that no work uses any more. cuMemFree would wait for all streams; a free
 * in the order of a stream waits for none, and the memory is back when that stream, which has no
 * other work, is waited for (measured on an H200).
 *
 * @throws CudaError where it was not freed
 */
export function freeWithoutWaiting(context: Context, address: CUdeviceptr): void {
  const stream = ownStream(context, 'frees');
  check(cu.cuMemFreeAsync(address, stream), 'cuMemFreeAsync');
  // Where that fails, it is freed all the same, and back at the next wait that does not.
  cu.cuStreamSynchronize(stream);
}
