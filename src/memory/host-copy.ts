/**
 * Copies between host and device: blocking, or awaited without blocking the event loop. Page-locked
 * memory is transferred at once, small pageable memory by the driver, and larger pageable memory
 * through the slots of staging.ts.
 */
import { arena, BLOCK } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import { libc } from '../../ffi/linux/libc.ts';
import { addressOf, withAddress } from '../../ffi/native.ts';
import type { Address, CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check, isReady } from '../check.ts';
import type { Context } from '../context.ts';
import { beginWait, throwIfOver, type Wait, type WaitOptions } from '../deadline.ts';
import { assertNotCapturing } from '../graph-capture.ts';
import { InternalEvent } from '../internal-event.ts';
import { type ExpectedEnd, nextLoopIteration, pollUntil } from '../poller.ts';
import { type Stream, type StreamOption, streamOf } from '../stream.ts';
import { checkHostMemory, checkOptions, formatBytes, type HostMemory } from '../validate.ts';
import { blockUntil, hasWaitingStreams } from '../waits/waiting-streams.ts';
import { chunks } from './chunks.ts';
import { assertNotRetired } from './host-views.ts';
import { internalStream } from './internal-stream.ts';
import { findLockingContext } from './page-lock.ts';
import { assertAttached, copyStaged, STAGING, withSlot, withSlotSync } from './staging.ts';

/** Device memory with checked access: a DeviceBuffer. */
export interface DeviceRange {
  readonly context: Context;
  readonly byteLength: number;
  /** Throws if the memory is closed. */
  readonly readableAddress: CUdeviceptr;
  /** Throws if the memory is closed or read-only. */
  readonly writableAddress: CUdeviceptr;
  /** The offsets at which driver calls must be split, ascending. */
  readonly splitOffsets: readonly number[];
  /** Call it before work in a stream uses the memory. */
  orderUse(stream: Stream | undefined): void;
}

/** Implements `copyFrom` and `copyToHost`. */
export async function copyHost(
  buffer: DeviceRange,
  direction: HostCopy['direction'],
  memory: HostMemory,
  options: (StreamOption & WaitOptions) | undefined,
): Promise<void> {
  const call = direction === 'to device' ? 'copyFrom' : 'copyToHost';
  const { stream, ...limits } = checkOptions(options, ['stream', 'signal', 'timeoutMs'], call);
  await copyHostWithin(buffer, direction, memory, stream, beginWait(limits, call));
}

/** As {@link copyHost}, within a wait that has begun. */
export const copyHostWithin = (
  buffer: DeviceRange,
  direction: HostCopy['direction'],
  memory: HostMemory,
  stream: Stream | undefined,
  wait: Wait,
): Promise<void> => copyAsync(toHostCopy(buffer, direction, memory, stream), wait);

/** Implements `copyFromSync` and `copyToHostSync`. */
export function copyHostSync(
  buffer: DeviceRange,
  direction: HostCopy['direction'],
  memory: HostMemory,
  options: StreamOption | undefined,
): void {
  const call = direction === 'to device' ? 'copyFromSync' : 'copyToHostSync';
  const { stream } = checkOptions(options, ['stream'], call);
  copySync(toHostCopy(buffer, direction, memory, stream));
}

function toHostCopy(
  buffer: DeviceRange,
  direction: HostCopy['direction'],
  memory: HostMemory,
  stream: Stream | undefined,
): HostCopy {
  const host = checkHostMemory(memory, direction === 'to device' ? 'source' : 'into');
  checkFits(host.byteLength, buffer.byteLength, 'the buffer');
  const checkedStream = streamOf(stream);
  const device = (): CUdeviceptr =>
    direction === 'to device' ? buffer.writableAddress : buffer.readableAddress;
  device(); // throws now, not when the copy starts, if the buffer is closed or read-only
  if (host.byteLength > 0) buffer.orderUse(checkedStream);
  return {
    direction,
    context: buffer.context,
    host,
    device,
    splitOffsets: buffer.splitOffsets,
    stream: checkedStream,
  };
}

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
  readonly wait: Wait;
}

/** Queues a part of a copy in its transfer stream. */
export type QueuePart = (host: Address, stream: CUstream) => void;

/**
 * A part of a copy of pageable memory that passes through page-locked memory at `locked`: the CPU's
 * half, and the device's.
 */
export interface LockedPart {
  /** Copies between the host memory, which begins at `host`, and `locked`. */
  moveOnHost(host: Address, locked: Address): void;
  /** Queues the transfer between `locked` and the device. */
  queue(locked: Address, stream: CUstream): void;
}

/** Up to this size, the driver copies pageable memory faster than other threads can start. */
const DIRECT_BYTE_LENGTH = 1 << 20;

/**
 * How much pageable memory is copied per event loop iteration without staging. At the driver's 10
 * to 18 GB/s, this takes less than half a millisecond.
 */
const SLICE_BYTE_LENGTH = 4 << 20;

/** Blocks until the copy is done, after all work queued in its stream. */
function copySync(copy: HostCopy): void {
  const { context, direction, host, stream } = copy;
  const byteLength = host.byteLength;
  if (byteLength === 0) return;
  assertNotCapturing('copying to or from the host');
  if (hasWaitingStreams(context)) {
    copyBesideWaits(copy, queueSlices(copy, Infinity), lockedSlices(copy));
    return;
  }
  if (stream) {
    withAddress(host, (address) => {
      for (const [offset, length] of chunks(byteLength, copy.splitOffsets))
        stream.enqueue((handle) =>
          queueSlice(copy, offset, (address + offset) as Address, length, handle),
        );
    });
    stream.synchronizeSync();
    return;
  }
  const deviceAddress = copy.device();
  if (
    direction === 'to host' &&
    byteLength <= MAX_SMALL_COPY_BYTE_LENGTH &&
    copy.splitOffsets.length === 0
  ) {
    copySmallToArena(context, deviceAddress, byteLength);
    host.set(new Uint8Array(arena.buffer, SMALL_COPY_ARENA_OFFSET, byteLength));
    return;
  }
  context.run(() => {
    withAddress(host, (address) => {
      for (const [offset, length] of chunks(byteLength, copy.splitOffsets)) {
        const device = (deviceAddress + offset) as CUdeviceptr;
        const hostAddress = (address + offset) as Address;
        if (direction === 'to device')
          check(
            cu.cuMemcpyHtoD_v2(device, hostAddress, length),
            'cuMemcpyHtoD_v2',
            describeCopy(copy),
          );
        else
          check(
            cu.cuMemcpyDtoH_v2(hostAddress, device, length),
            'cuMemcpyDtoH_v2',
            describeCopy(copy),
          );
      }
    });
    // Up to 64 KiB, the driver returns before the device has the bytes (seen on an H200). Work in a
    // non-blocking stream could still read the old bytes.
    if (direction === 'to device')
      check(cu.cuStreamSynchronize(0 as CUstream), 'cuStreamSynchronize', describeCopy(copy));
  });
}

/**
 * Blocks until the copy is done, as a `...Sync` function does while streams wait for other processes:
 * without a call of the driver that waits.
 *
 * @param parts the parts of a copy of page-locked memory
 * @param lockedParts the parts of a copy of pageable memory
 */
export function copyBesideWaits(
  copy: HostCopy,
  parts: Iterable<QueuePart>,
  lockedParts: Iterable<LockedPart>,
): void {
  const { context, direction, host, stream } = copy;
  const transferStream = transferStreamOf(context);
  {
    using queuedWork = InternalEvent.behind(stream?.context ?? context, stream);
    blockUntil(() => {
      copy.device();
      return queuedWork.isDone;
    });
  }
  using event = new InternalEvent(context);
  const transfer = (queue: () => void): void => {
    queue();
    event.recordIn(transferStream);
    // Nothing else may end this wait: the transfer uses both memories.
    blockUntil(() => event.isDone);
  };
  withAddress(host, (address) => {
    if (findLockingContext(context, address, host.byteLength)) {
      for (const queue of parts) transfer(() => queue(address, transferStream));
      return;
    }
    const isDone = withSlotSync(context, (slot) => {
      for (const part of lockedParts) {
        if (direction === 'to device') part.moveOnHost(address, slot.address);
        transfer(() => part.queue(slot.address, transferStream));
        if (direction === 'to host') part.moveOnHost(address, slot.address);
      }
      return true;
    });
    if (isDone) return;
    // Without page-locked memory the driver copies, which may block as long as a stream waits.
    blockUntil(() => !hasWaitingStreams(context));
    for (const queue of parts) transfer(() => queue(address, transferStream));
  });
}

/**
 * As {@link copyInTicks}, of pageable memory while streams wait for other processes. Of pageable memory
 * the driver copies in the calling thread, which blocks if the transfer stream stands still: it may
 * share a hardware queue with a stream that waits.
 */
export async function copyLockedInTicks(
  started: StartedCopy,
  parts: Iterable<QueuePart>,
  lockedParts: Iterable<LockedPart>,
): Promise<void> {
  const { copy, transferStream, wait } = started;
  const { context, direction, host } = copy;
  const { byteLength } = host;
  const isDone = await withSlot(context, async (slot) => {
    let isFirst = true;
    for (const part of lockedParts) {
      if (!isFirst) await nextLoopIteration();
      isFirst = false;
      throwIfOver(wait);
      assertAttached(host, byteLength);
      if (direction === 'to device') part.moveOnHost(addressOf(host), slot.address);
      await transferAndWait(context, transferStream, slot.event, () =>
        part.queue(slot.address, transferStream),
      );
      copy.device();
      assertAttached(host, byteLength);
      if (direction === 'to host') part.moveOnHost(addressOf(host), slot.address);
    }
    return true;
  });
  if (isDone) return;
  await pollUntil(() => !hasWaitingStreams(context), wait);
  await copyInTicks(started, parts);
}

/**
 * Resolves when the copy is done. The copy starts when the work already queued in its stream is
 * done, and uses an internal stream.
 */
export async function copyAsync(copy: HostCopy, wait: Wait): Promise<void> {
  const { byteLength } = copy.host;
  throwIfOver(wait);
  if (byteLength === 0) return;
  assertNotCapturing('copying to or from the host');
  await afterQueuedWork(copy, wait, async (started) => {
    const usesStaging = !started.isLocked && byteLength > DIRECT_BYTE_LENGTH;
    if (usesStaging && (await stage(started))) return;
    const slices = queueSlices(copy, started.isLocked ? byteLength : SLICE_BYTE_LENGTH);
    if (started.isLocked || !hasWaitingStreams(copy.context)) await copyInTicks(started, slices);
    else await copyLockedInTicks(started, slices, lockedSlices(copy));
  });
}

/**
 * The largest copy to the host that goes through the arena. This is faster for small typed arrays:
 * taking the address of one moves it out of V8's heap (`npm run bench -- arrays --case
 * array.copyToHostSync`).
 */
export const MAX_SMALL_COPY_BYTE_LENGTH = 256;

/** The offset in {@link arena} of the bytes that {@link copySmallToArena} copied. */
export const SMALL_COPY_ARENA_OFFSET: number = arena.blockOffset;

/**
 * Copies bytes to the arena, after the work queued in the legacy default stream. Blocks until done.
 * The bytes are valid until the next driver call.
 */
export function copySmallToArena(context: Context, from: CUdeviceptr, byteLength: number): void {
  assertNotCapturing('copying to or from the host');
  if (hasWaitingStreams(context)) {
    const host = new Uint8Array(byteLength);
    const common = { context, host, splitOffsets: [], stream: undefined } as const;
    const copy: HostCopy = { direction: 'to host', device: () => from, ...common };
    copyBesideWaits(copy, queueSlices(copy, Infinity), lockedSlices(copy));
    new Uint8Array(arena.buffer, SMALL_COPY_ARENA_OFFSET, byteLength).set(host);
    return;
  }
  context.run(() =>
    check(
      cu.cuMemcpyDtoH_v2(BLOCK, from, byteLength),
      'cuMemcpyDtoH_v2',
      () => `copying ${formatBytes(byteLength)} to host`,
    ),
  );
}

/**
 * Makes later work of a stream wait for the queued transfers of awaited copies in a context. Memory
 * freed in stream order may be a source or target of those copies.
 */
export function orderAfterTransfers(context: Context, stream: CUstream): void {
  if (transfersInProgress > 0) makeStreamWait(context, stream);
}

// ---- The steps of a copy ----

function* queueSlices(copy: HostCopy, maxByteLength: number): Generator<QueuePart> {
  for (const [offset, length] of chunks(copy.host.byteLength, copy.splitOffsets, maxByteLength))
    yield (host, stream) => queueSlice(copy, offset, (host + offset) as Address, length, stream);
}

function* lockedSlices(copy: HostCopy): Generator<LockedPart> {
  const { direction, host, splitOffsets } = copy;
  for (const [offset, length] of chunks(host.byteLength, splitOffsets, STAGING.slotByteLength))
    yield {
      moveOnHost(address, locked) {
        const pageable = address + offset;
        if (direction === 'to device') libc.memmove(locked, pageable, length);
        else libc.memmove(pageable, locked, length);
      },
      queue: (locked, stream) => queueSlice(copy, offset, locked, length, stream),
    };
}

/** Copies through staging slots. Resolves to false, with nothing copied, if no memory can be page-locked. */
const stage = ({ copy, transferStream, wait }: StartedCopy): Promise<boolean> =>
  copyStaged({
    ...copy,
    wait,
    assertOpen: () => void copy.device(),
    transfer: ([offset, length], slot) =>
      transferAndWait(copy.context, transferStream, slot.event, () =>
        queueSlice(copy, offset, slot.address, length, transferStream),
      ),
  });

/**
 * Calls `transfer` when the work queued in the copy's stream is done, and resolves when `transfer`
 * resolves. Rejects if the buffer, or the buffer behind the host memory, was closed or the context
 * was reset meanwhile.
 */
export async function afterQueuedWork(
  copy: HostCopy,
  wait: Wait,
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
    }, wait);
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
      wait,
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
  { copy, transferStream, event, isLocked, wait }: StartedCopy,
  parts: Iterable<QueuePart>,
): Promise<void> {
  const { context, host } = copy;
  const byteLength = host.byteLength;
  let isFirst = true;
  for (const queue of parts) {
    if (!isFirst) await nextLoopIteration();
    isFirst = false;
    assertAttached(host, byteLength);
    // The wait may end between parts, because the driver uses the host memory during a part.
    await transferAndWait(
      context,
      transferStream,
      event,
      () => queue(addressOf(host), transferStream),
      isLocked ? byteLength : 0,
    );
    throwIfOver(wait);
  }
}

/**
 * Queues a transfer and waits for it. When the promise settles, even by rejecting, nothing uses
 * either side any longer.
 *
 * @param byteLength the bytes that the device transfers by itself, to estimate the duration
 */
async function transferAndWait(
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
    const queuedAt = performance.now();
    await pollUntil(() => event.isDone, {}, expectedEnd(context, byteLength));
    noteDuration(context, byteLength, performance.now() - queuedAt);
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
function queueSlice(
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
const describeCopy =
  ({ direction, host }: HostCopy) =>
  (): string =>
    `copying ${formatBytes(host.byteLength)} ${direction}`;

/** @throws RangeError if a range does not fit in another */
export function checkFits(byteLength: number, available: number, where: string): void {
  if (byteLength > available)
    throw new RangeError(
      `${formatBytes(byteLength)} do not fit in ${where}, which has ${formatBytes(available)}`,
    );
}

/** The bytes a millisecond of the last long transfer of page-locked memory, by context. */
const lastSpeeds = new WeakMap<Context, number>();
/** How much longer than the last one, in relation, a transfer may take and still be polled for. */
const EAGER_MARGIN = 0.4;
/** Polling must not keep the event loop busy for all of a long copy. */
const LONGEST_EAGER_MS = 1;

/**
 * When a transfer ends if it is as fast as the last one. Polling is then eager. The first transfer
 * of a context is polled for as any work.
 */
function expectedEnd(context: Context, byteLength: number): ExpectedEnd | undefined {
  const speed = lastSpeeds.get(context);
  if (speed === undefined || byteLength === 0) return undefined;
  const earliestMs = byteLength / speed;
  return {
    earliestMs,
    latestMs: earliestMs + Math.min(earliestMs * EAGER_MARGIN, LONGEST_EAGER_MS),
  };
}

/** A short transfer takes mostly the time of the calls: it says nothing about long ones. */
function noteDuration(context: Context, byteLength: number, elapsedMs: number): void {
  if (byteLength > DIRECT_BYTE_LENGTH && elapsedMs > 0)
    lastSpeeds.set(context, byteLength / elapsedMs);
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
