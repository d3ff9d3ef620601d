/** The steps of a copy between host and device, and the internal stream for awaited copies. */
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

/** A copy between host and device. */
export interface HostCopy {
  readonly direction: 'to device' | 'to host';
  readonly context: Context;
  readonly host: Uint8Array;
  /** The device address. Each slice reads it again, so a closed buffer is noticed. */
  device(): CUdeviceptr;
  /** The offsets at which the device memory must be split. */
  readonly splitOffsets: readonly number[];
  readonly stream: Stream | undefined;
}

/** A copy whose preceding work is done. */
export interface StartedCopy {
  readonly copy: HostCopy;
  /** The stream that transfers it. */
  readonly transferStream: CUstream;
  /** Recorded after each part. */
  readonly event: InternalEvent;
  /** Whether the host memory is page-locked for the device; queueing then never blocks. */
  readonly isLocked: boolean;
  readonly signal: AbortSignal | undefined;
}

/** Queues a part of a copy in its transfer stream. */
export type QueuePart = (host: Address, stream: CUstream) => void;

/**
 * Calls `transfer` when the work queued in the copy's stream is done, and resolves when `transfer`
 * resolves. Rejects if the buffer, or the buffer behind the host memory, was closed or the context
 * was reset meanwhile.
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
    // Keeps the pages locked until the copy is done.
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

/** Copies part by part, one per event loop iteration. */
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
    // The signal is checked between parts, because the driver uses the host memory during a part.
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

/**
 * Queues a transfer and waits for it. When the promise settles, even by rejecting, nothing uses
 * either side any longer.
 *
 * @param byteLength the bytes that the device transfers by itself, to estimate the duration
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
    // The event tells nothing, and the transfer may still run. If querying the stream fails too,
    // the context is lost, and its work with it.
    await pollUntil(
      () => context.epoch !== epoch || isReady(cu.cuStreamQuery(stream), 'cuStreamQuery'),
    ).catch(() => {});
    throw error;
  }
}

/** Queues one slice of a copy, from or to `host` and the device memory at `offset`. */
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

/** Describes a copy for error messages. */
export const describeCopy =
  ({ direction, host }: HostCopy) =>
  (): string =>
    `copying ${host.byteLength} bytes ${direction}`;

/** @throws TypeError if the host memory of `byteLength` bytes was detached meanwhile */
export function assertAttached(host: Uint8Array, byteLength: number): void {
  if (host.byteLength !== byteLength)
    throw new TypeError('the host memory was detached while it was copied');
}

/**
 * Makes later work of a stream wait for the queued transfers of awaited copies in a context. Memory
 * freed in stream order may be a source or target of those copies.
 */
export function orderAfterTransfers(context: Context, stream: CUstream): void {
  if (transfersInProgress > 0) makeStreamWait(context, stream);
}

/** 55 GB/s were measured over the bus of an H200. */
const FASTEST_BYTES_PER_MS = 56e6;
const SLOWEST_BYTES_PER_MS = 40e6;
/** On a slower bus, polling must not keep the event loop busy for all of a long copy. */
const LONGEST_EAGER_MS = 1;

function expectedEnd(byteLength: number): ExpectedEnd {
  const earliestMs = byteLength / FASTEST_BYTES_PER_MS;
  const latestMs = Math.min(byteLength / SLOWEST_BYTES_PER_MS, earliestMs + LONGEST_EAGER_MS);
  return { earliestMs, latestMs };
}

/**
 * The stream that awaited copies of a context use. If pageable memory were copied in a busy stream,
 * the driver would block this thread.
 */
const transferStreamOf = (context: Context): CUstream => internalStream(context, 'transfers');

/** How many awaited copies have started and not settled. */
let transfersInProgress = 0;

/** Runs an awaited copy and counts it as in progress. */
async function countTransfer(copy: () => Promise<void>): Promise<void> {
  transfersInProgress += 1;
  try {
    await copy();
  } finally {
    transfersInProgress -= 1;
  }
}

// A separate function, because the setup for `using` would cost every call.
function makeStreamWait(context: Context, stream: CUstream): void {
  const transferStream = transferStreamOf(context);
  if (isReady(cu.cuStreamQuery(transferStream), 'cuStreamQuery')) return;
  using event = new InternalEvent(context);
  event.recordIn(transferStream);
  event.makeStreamWait(stream);
}
