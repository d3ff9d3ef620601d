/** Copies between host and device: blocking, and awaited without blocking the event loop. */
import { cu } from '../../ffi/driver.ts';
import { addressOf, withAddress } from '../../ffi/native.ts';
import type { Address, CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import { nextTurn, type WaitOptions, waitUntil } from '../wait.ts';
import { Mark } from './mark.ts';
import { lockedIn } from './page-lock.ts';
import { pieces } from './pieces.ts';
import { copyStaged } from './staged-copy.ts';
import {
  doing,
  type HostCopy,
  moveSlice,
  queueSlice,
  requireAttached,
  transferStream,
} from './transfer.ts';

/** Up to here the driver copies ordinary memory sooner than other threads would have begun. */
const DIRECT_BYTE_LENGTH = 1 << 20;

/**
 * How much ordinary memory is copied between two turns of the event loop where there is no
 * staging: at the driver's 10 to 18 GB/s less than half a millisecond.
 */
const SLICE_BYTE_LENGTH = 4 << 20;

/** Blocks until the copy is done, after all work that was queued in its stream. */
export function copySync(copy: HostCopy): void {
  const { context, direction, host, stream } = copy;
  const byteLength = host.byteLength;
  if (byteLength === 0) return;
  if (stream) {
    stream.enqueue((handle) =>
      withAddress(host, (address) => {
        for (const [offset, length] of pieces(byteLength, copy.cuts))
          queueSlice(copy, offset, (address + offset) as Address, length, handle);
      }),
    );
    stream.synchronizeSync();
    return;
  }
  const start = copy.device();
  context.run(() =>
    withAddress(host, (address) => {
      for (const [offset, length] of pieces(byteLength, copy.cuts)) {
        const device = (start + offset) as CUdeviceptr;
        const here = (address + offset) as Address;
        if (direction === 'to device')
          check(cu.cuMemcpyHtoD_v2(device, here, length), 'cuMemcpyHtoD_v2', doing(copy));
        else check(cu.cuMemcpyDtoH_v2(here, device, length), 'cuMemcpyDtoH_v2', doing(copy));
      }
    }),
  );
}

/**
 * Resolves when the copy is done. It begins when the work that was queued in its stream at the
 * call is done, and goes over a stream of its own.
 */
export async function copyAwaited(copy: HostCopy, options: WaitOptions = {}): Promise<void> {
  const { context, host } = copy;
  const byteLength = host.byteLength;
  if (byteLength === 0) return;
  const mark = await workSoFar(copy, options);
  try {
    copy.device();
    requireAttached(host, byteLength);
    const transfers = transferStream(context);
    const owner = lockedIn(context, addressOf(host), byteLength);
    // Its pages stay locked until the copy is done.
    owner?.activity.visitedBy(context.activity);
    const isStaged =
      !owner &&
      byteLength > DIRECT_BYTE_LENGTH &&
      (await copyStaged(copy, transfers, options.signal));
    if (!isStaged)
      await copyDirectly(copy, transfers, mark, owner ? byteLength : SLICE_BYTE_LENGTH, options);
  } finally {
    mark[Symbol.dispose]();
  }
  // Throws if the buffer was closed, or its context reset, before the last slice arrived.
  copy.device();
}

/** Copies slice by slice, each in a turn of the event loop. */
async function copyDirectly(
  copy: HostCopy,
  transfers: CUstream,
  before: Mark,
  most: number,
  { signal }: WaitOptions,
): Promise<void> {
  const { context, host } = copy;
  const byteLength = host.byteLength;
  const mark = before.context === context ? before : new Mark(context);
  try {
    for (const [offset, length] of pieces(byteLength, copy.cuts, most)) {
      if (offset > 0) await nextTurn();
      requireAttached(host, byteLength);
      const address = (addressOf(host) + offset) as Address;
      // Not given up for a signal: the driver has the host memory until the slice is through.
      await moveSlice(copy, offset, address, length, transfers, mark);
      signal?.throwIfAborted();
    }
  } finally {
    mark[Symbol.dispose]();
  }
}

/**
 * Resolves when what is queued in the copy's stream now is done, with the mark behind it; rejects
 * when the buffer was closed meanwhile.
 */
async function workSoFar(copy: HostCopy, options: WaitOptions): Promise<Mark> {
  const { stream } = copy;
  // An event can only be recorded in streams of its own context.
  const mark = new Mark(stream?.context ?? copy.context);
  try {
    mark.record(stream);
    await waitUntil(() => {
      copy.device();
      return mark.reached;
    }, options);
    return mark;
  } catch (error) {
    mark[Symbol.dispose]();
    throw error;
  }
}
