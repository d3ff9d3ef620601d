/** One copy between host and device, and the stream that awaited ones go over. */
import { cu } from '../../ffi/driver.ts';
import { addressOf } from '../../ffi/native.ts';
import type { Address, CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check, isReady } from '../check.ts';
import type { Context } from '../context.ts';
import { type ExpectedEnd, nextLoopIteration, pollUntil, type WaitOptions } from '../poller.ts';
import type { Stream } from '../stream.ts';
import { assertNotRetired } from './host-views.ts';
import { InternalEvent } from './internal-event.ts';
import { internalStream } from './internal-stream.ts';
import { findLockingContext } from './page-lock.ts';

/** One copy: which way, between what. */
export interface HostCopy {
  readonly direction: 'to device' | 'to host';
  readonly context: Context;
  readonly host: Uint8Array;
  /** The device address; asked again for each slice, so that closing the buffer is noticed. */
  device(): CUdeviceptr;
  /** Where the device memory must be cut, as offsets. */
  readonly splitOffsets: readonly number[];
  readonly stream: Stream | undefined;
}

/** What a copy does, for messages. */
export const describeCopy =
  ({ direction, host }: HostCopy) =>
  (): string =>
    `copying ${host.byteLength} bytes ${direction}`;

/** Queues a slice of a copy: `host` is where it lies in host memory, `offset` on the device. */
export function queueSlice(
  copy: HostCopy,
  offset: number,
  host: Address,
  byteLength: number,
  stream: CUstream,
): void {
  const device = (copy.device() + offset) as CUdeviceptr;
  if (copy.direction === 'to device')
    check(
      cu.cuMemcpyHtoDAsync_v2(device, host, byteLength, stream),
      'cuMemcpyHtoDAsync_v2',
      describeCopy(copy),
    );
  else
    check(
      cu.cuMemcpyDtoHAsync_v2(host, device, byteLength, stream),
      'cuMemcpyDtoHAsync_v2',
      describeCopy(copy),
    );
}

/** 55 GB/s were measured over the bus of an H200. */
const FASTEST_BYTES_PER_MS = 56e6;
const SLOWEST_BYTES_PER_MS = 40e6;
/** A slower bus must not make the loop turn in vain for the whole of a long copy. */
const LONGEST_EAGER_MS = 1;

function expectedEnd(byteLength: number): ExpectedEnd {
  const earliestMs = byteLength / FASTEST_BYTES_PER_MS;
  const latestMs = Math.min(byteLength / SLOWEST_BYTES_PER_MS, earliestMs + LONGEST_EAGER_MS);
  return { earliestMs, latestMs };
}

/**
 * Queues a transfer, and resolves when nothing uses either side of it any more; so it is when it
 * rejects, too.
 *
 * @param byteLength how much the device transfers by itself: it is known how long that takes
 */
export async function transferAndWait(
  context: Context,
  stream: CUstream,
  event: InternalEvent,
  queue: () => void,
  byteLength = 0,
): Promise<void> {
  const { epoch } = context;
  queue();
  try {
    event.recordIn(stream);
    await pollUntil(() => event.isDone, {}, expectedEnd(byteLength));
  } catch (error) {
    // The mark says nothing, and the transfer may be under way. Where the stream cannot be asked
    // either, the context is lost and with it all that ran there.
    await pollUntil(
      () => context.epoch !== epoch || isReady(cu.cuStreamQuery(stream), 'cuStreamQuery'),
    ).catch(() => {});
    throw error;
  }
}

/** @throws TypeError where host memory that had `byteLength` bytes was given away meanwhile */
export function assertAttached(host: Uint8Array, byteLength: number): void {
  if (host.byteLength !== byteLength)
    throw new TypeError('the host memory was detached while it was copied');
}

/**
 * The stream that awaited copies of a context go over: a copy of pageable memory queued in a busy
 * stream would make the driver block this thread.
 */
const transferStreamOf = (context: Context): CUstream => internalStream(context, 'transfers');

/** How many awaited copies have begun and not settled. */
let transfersInProgress = 0;

/** Runs an awaited copy, which is counted meanwhile. */
async function countTransfer(copy: () => Promise<void>): Promise<void> {
  transfersInProgress += 1;
  try {
    await copy();
  } finally {
    transfersInProgress -= 1;
  }
}

/**
 * Makes later work of a stream wait for what awaited copies of a context have queued: memory that is
 * freed in the order of that stream may be what they copy from or to.
 */
export function orderAfterTransfers(context: Context, stream: CUstream): void {
  if (transfersInProgress > 0) makeStreamWait(context, stream);
}

// Apart, as what `using` needs would be set up at every call.
function makeStreamWait(context: Context, stream: CUstream): void {
  const transferStream = transferStreamOf(context);
  if (isReady(cu.cuStreamQuery(transferStream), 'cuStreamQuery')) return;
  using event = new InternalEvent(context);
  event.recordIn(transferStream);
  event.makeStreamWait(stream);
}

/** How awaited copies between host and device begin, go on in turns of the event loop, and end. */

/** What a copy that has begun goes by. */
export interface StartedCopy {
  readonly copy: HostCopy;
  /** The stream that it goes over. */
  readonly transferStream: CUstream;
  /** Recorded behind each part of it. */
  readonly event: InternalEvent;
  /** Whether the device reaches the host memory itself: nothing that is queued blocks then. */
  readonly isLocked: boolean;
  readonly signal: AbortSignal | undefined;
}

/** Queues a part of a copy, in the stream that it goes over. */
export type QueuePart = (host: Address, stream: CUstream) => void;

/**
 * Calls `use` when the work that was queued in the copy's stream is done, and resolves when `use`
 * has; rejects where the buffer, or the one that the host memory is of, was closed before, or the
 * context reset.
 */
export async function afterQueuedWork(
  copy: HostCopy,
  options: WaitOptions,
  transfer: (started: StartedCopy) => Promise<void>,
): Promise<void> {
  const { context, host, stream } = copy;
  const byteLength = host.byteLength;
  // An event can only be recorded in streams of its own context.
  const queuedWork = new InternalEvent(stream?.context ?? context);
  let event: InternalEvent | undefined;
  try {
    queuedWork.record(stream);
    await pollUntil(() => {
      copy.device();
      return queuedWork.isDone;
    }, options);
    copy.device();
    assertAttached(host, byteLength);
    assertNotRetired(host);
    const lockingContext = findLockingContext(context, addressOf(host), byteLength);
    // Its pages stay locked until the copy is done.
    lockingContext?.workTracker.addOtherContext(context.workTracker);
    const transferStream = transferStreamOf(context);
    event = queuedWork.context === context ? queuedWork : new InternalEvent(context);
    const started = {
      copy,
      transferStream,
      event,
      isLocked: lockingContext !== undefined,
      signal: options.signal,
    };
    await countTransfer(() => transfer(started));
  } finally {
    queuedWork[Symbol.dispose]();
    event?.[Symbol.dispose]();
  }
  copy.device();
}

/** Copies part by part, each in a turn of the event loop. */
export async function copyInTicks(
  { copy, transferStream, event, isLocked, signal }: StartedCopy,
  parts: Iterable<QueuePart>,
): Promise<void> {
  const { context, host } = copy;
  const byteLength = host.byteLength;
  let isFirst = true;
  for (const queue of parts) {
    if (!isFirst) await nextLoopIteration();
    isFirst = false;
    assertAttached(host, byteLength);
    // Not given up for a signal: the driver has the host memory until the part is through.
    await transferAndWait(
      context,
      transferStream,
      event,
      () => queue(addressOf(host), transferStream),
      isLocked ? byteLength : 0,
    );
    signal?.throwIfAborted();
  }
}
