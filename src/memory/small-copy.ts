/**
 * Copies to the host of so few bytes that they cost less through the arena: a small typed array
 * has no address until it is asked for one, and is then moved out of V8's heap.
 */
import { arena, BLOCK } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { refuseInCapture } from '../capture.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';

/** The most bytes that go this way. */
export const SMALL_BYTE_LENGTH = 256;

/** Where in {@link arena} the bytes are that {@link fetchSmall} copied. */
export const SMALL_OFFSET: number = BLOCK - arena.address;

/**
 * Blocks until so many bytes are in the arena, after the work that was queued in the legacy default
 * stream: there they are until the next call of the driver.
 */
export function fetchSmall(context: Context, from: CUdeviceptr, byteLength: number): void {
  refuseInCapture('copying to or from the host');
  context.run(() =>
    check(
      cu.cuMemcpyDtoH_v2(BLOCK, from, byteLength),
      'cuMemcpyDtoH_v2',
      () => `copying ${byteLength} bytes to host`,
    ),
  );
}
