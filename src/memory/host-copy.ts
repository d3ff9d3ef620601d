/** Copies between host and device: blocking, or awaited without blocking the event loop. */
import { arena, BLOCK } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import { withAddress } from '../../ffi/native.ts';
import type { Address, CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { assertNotCapturing } from '../graph-capture.ts';
import type { WaitOptions } from '../poller.ts';
import { chunks } from './chunks.ts';
import { copyStaged } from './staging.ts';
import {
  afterQueuedWork,
  copyInTicks,
  describeCopy,
  type HostCopy,
  type QueuePart,
  queueSlice,
} from './transfer.ts';

/** Up to this size, the driver copies pageable memory faster than other threads can start. */
const DIRECT_BYTE_LENGTH = 1 << 20;

/**
 * How much pageable memory is copied per event loop iteration without staging. At the driver's 10
 * to 18 GB/s, this takes less than half a millisecond.
 */
const SLICE_BYTE_LENGTH = 4 << 20;

/** Blocks until the copy is done, after all work queued in its stream. */
export function copySync(copy: HostCopy): void {
  const { context, direction, host, stream } = copy;
  const byteLength = host.byteLength;
  if (byteLength === 0) return;
  assertNotCapturing('copying to or from the host');
  if (stream) {
    stream.enqueue((handle) =>
      withAddress(host, (address) => {
        for (const [offset, length] of chunks(byteLength, copy.splitOffsets))
          queueSlice(copy, offset, (address + offset) as Address, length, handle);
      }),
    );
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
 * Resolves when the copy is done. The copy starts when the work already queued in its stream is
 * done, and uses an internal stream.
 */
export async function copyAsync(copy: HostCopy, options: WaitOptions = {}): Promise<void> {
  const { byteLength } = copy.host;
  options.signal?.throwIfAborted();
  if (byteLength === 0) return;
  assertNotCapturing('copying to or from the host');
  await afterQueuedWork(copy, options, async (started) => {
    const usesStaging = !started.isLocked && byteLength > DIRECT_BYTE_LENGTH;
    if (usesStaging && (await copyStaged(started))) return;
    await copyInTicks(
      started,
      queueSlices(copy, started.isLocked ? byteLength : SLICE_BYTE_LENGTH),
    );
  });
}

function* queueSlices(copy: HostCopy, maxByteLength: number): Generator<QueuePart> {
  for (const [offset, length] of chunks(copy.host.byteLength, copy.splitOffsets, maxByteLength))
    yield (host, stream) => queueSlice(copy, offset, (host + offset) as Address, length, stream);
}

/**
 * The largest copy to the host that goes through the arena. This is faster for small typed arrays:
 * taking the address of one moves it out of V8's heap.
 */
export const MAX_SMALL_COPY_BYTE_LENGTH = 256;

/** The offset in {@link arena} of the bytes that {@link copySmallToArena} copied. */
export const SMALL_COPY_ARENA_OFFSET: number = BLOCK - arena.address;

/**
 * Copies bytes to the arena, after the work queued in the legacy default stream. Blocks until done.
 * The bytes are valid until the next driver call.
 */
export function copySmallToArena(context: Context, from: CUdeviceptr, byteLength: number): void {
  assertNotCapturing('copying to or from the host');
  context.run(() =>
    check(
      cu.cuMemcpyDtoH_v2(BLOCK, from, byteLength),
      'cuMemcpyDtoH_v2',
      () => `copying ${byteLength} bytes to host`,
    ),
  );
}
