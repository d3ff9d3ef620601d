/** One copy between host and device, and the stream that awaited ones go over. */
import { cu } from '../../ffi/driver.ts';
import { addressOf } from '../../ffi/native.ts';
import type { Address, CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check, isReady } from '../check.ts';
import type { Context } from '../context.ts';
import { type ExpectedEnd, nextTurn, type WaitOptions, waitUntil } from '../poller.ts';
import type { Stream } from '../stream.ts';
import { requireKept } from './host-views.ts';
import { Mark } from './internal-event.ts';
import { ownStream } from './internal-stream.ts';
import { lockedIn } from './page-lock.ts';

/** One copy: which way, between what. */
export interface HostCopy {
  readonly direction: 'to device' | 'to host';
  readonly context: Context;
  readonly host: Uint8Array;
  /** The device address; asked again for each slice, so that closing the buffer is noticed. */
  device(): CUdeviceptr;
  /** Where the device memory must be cut, as offsets. */
  readonly cuts: readonly number[];
  readonly stream: Stream | undefined;
}

/** What a copy does, for messages. */
export const doing =
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
      doing(copy),
    );
  else
    check(
      cu.cuMemcpyDtoHAsync_v2(host, device, byteLength, stream),
      'cuMemcpyDtoHAsync_v2',
      doing(copy),
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
export async function moveInStream(
  context: Context,
  stream: CUstream,
  mark: Mark,
  queue: () => void,
  byteLength = 0,
): Promise<void> {
  const { resets } = context;
  queue();
  try {
    mark.recordIn(stream);
    await waitUntil(() => mark.reached, {}, expectedEnd(byteLength));
  } catch (error) {
    // The mark says nothing, and the transfer may be under way. Where the stream cannot be asked
    // either, the context is lost and with it all that ran there.
    await waitUntil(
      () => context.resets !== resets || isReady(cu.cuStreamQuery(stream), 'cuStreamQuery'),
    ).catch(() => {});
    throw error;
  }
}

/** @throws TypeError where host memory that had `byteLength` bytes was given away meanwhile */
export function requireAttached(host: Uint8Array, byteLength: number): void {
  if (host.byteLength !== byteLength)
    throw new TypeError('the host memory was detached while it was copied');
}

/**
 * The stream that awaited copies of a context go over: a copy of pageable memory queued in a busy
 * stream would make the driver block this thread.
 */
const transferStream = (context: Context): CUstream => ownStream(context, 'transfers');

/** How many awaited copies have begun and not settled. */
let underWay = 0;

/** Runs an awaited copy, which is counted meanwhile. */
async function countingTransfer(copy: () => Promise<void>): Promise<void> {
  underWay += 1;
  try {
    await copy();
  } finally {
    underWay -= 1;
  }
}

/**
 * Makes later work of a stream wait for what awaited copies of a context have queued: memory that is
 * freed in the order of that stream may be what they copy from or to.
 */
export function holdUpForTransfers(context: Context, stream: CUstream): void {
  if (underWay > 0) holdUp(context, stream);
}

// Apart, as what `using` needs would be set up at every call.
function holdUp(context: Context, stream: CUstream): void {
  const transfers = transferStream(context);
  if (isReady(cu.cuStreamQuery(transfers), 'cuStreamQuery')) return;
  using mark = new Mark(context);
  mark.recordIn(transfers);
  mark.holdUp(stream);
}

/** How awaited copies between host and device begin, go on in turns of the event loop, and end. */

/** What a copy that has begun goes by. */
export interface BegunCopy {
  readonly copy: HostCopy;
  /** The stream that it goes over. */
  readonly transfers: CUstream;
  /** Recorded behind each part of it. */
  readonly mark: Mark;
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
export async function afterWorkSoFar(
  copy: HostCopy,
  options: WaitOptions,
  use: (begun: BegunCopy) => Promise<void>,
): Promise<void> {
  const { context, host, stream } = copy;
  const byteLength = host.byteLength;
  // An event can only be recorded in streams of its own context.
  const before = new Mark(stream?.context ?? context);
  let mark: Mark | undefined;
  try {
    before.record(stream);
    await waitUntil(() => {
      copy.device();
      return before.reached;
    }, options);
    copy.device();
    requireAttached(host, byteLength);
    requireKept(host);
    const owner = lockedIn(context, addressOf(host), byteLength);
    // Its pages stay locked until the copy is done.
    owner?.activity.visitedBy(context.activity);
    const transfers = transferStream(context);
    mark = before.context === context ? before : new Mark(context);
    const begun = { copy, transfers, mark, isLocked: owner !== undefined, signal: options.signal };
    await countingTransfer(() => use(begun));
  } finally {
    before[Symbol.dispose]();
    mark?.[Symbol.dispose]();
  }
  copy.device();
}

/** Copies part by part, each in a turn of the event loop. */
export async function copyInTurns(
  { copy, transfers, mark, isLocked, signal }: BegunCopy,
  parts: Iterable<QueuePart>,
): Promise<void> {
  const { context, host } = copy;
  const byteLength = host.byteLength;
  let isFirst = true;
  for (const queue of parts) {
    if (!isFirst) await nextTurn();
    isFirst = false;
    requireAttached(host, byteLength);
    // Not given up for a signal: the driver has the host memory until the part is through.
    await moveInStream(
      context,
      transfers,
      mark,
      () => queue(addressOf(host), transfers),
      isLocked ? byteLength : 0,
    );
    signal?.throwIfAborted();
  }
}
