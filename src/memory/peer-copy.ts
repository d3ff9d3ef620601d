/** Copies between the devices of two contexts. */

import { cu } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { CudaError } from '../errors.ts';
import type { Stream } from '../stream.ts';
import { formatBytes } from '../validate.ts';
import { assertNotCaptured } from '../work-tracker.ts';

/** An address in a context. */
export interface ContextAddress {
  readonly context: Context;
  readonly address: CUdeviceptr;
}

/**
 * Enables peer access from `from` to the memory of `to` if the devices support it. Copies then use
 * their direct link.
 */
export function tryEnablePeerAccess(from: Context, to: Context): void {
  if (from.peerAccess.has(to) || !from.device.canAccessPeer(to.device)) return;
  try {
    from.enablePeerAccess(to);
  } catch (error) {
    // The number of peers of a context is limited, and copies work without peer access.
    const isTooMany =
      error instanceof CudaError && error.status === CUresult.CUDA_ERROR_TOO_MANY_PEERS;
    if (!isTooMany) throw error;
  }
}

/**
 * Queues a copy from one device to another. With peer access it uses the direct link, ten times as
 * fast as through the host.
 */
export function copyBetweenDevices(
  source: ContextAddress,
  target: ContextAddress,
  byteLength: number,
  stream: Stream | undefined,
): void {
  if (byteLength === 0) return;
  const from = source.context;
  const to = target.context;
  tryEnablePeerAccess(from, to);
  const [fromHandle, toHandle] = [from.handle, to.handle];
  const call = (handle: CUstream): void => {
    assertNotCaptured(handle, 'copying from one device to another');
    check(
      cu.cuMemcpyPeerAsync(
        target.address,
        toHandle,
        source.address,
        fromHandle,
        byteLength,
        handle,
      ),
      'cuMemcpyPeerAsync',
      () => `copying ${formatBytes(byteLength)} from ${from.device} to ${to.device}`,
    );
  };
  if (stream) stream.enqueue(call);
  else from.enqueue(call);
}
