/** Copies between host and device: blocking, and awaited without blocking the event loop. */
import { arena, BLOCK } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import { withAddress } from '../../ffi/native.ts';
import type { Address, CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { assertNotCapturing } from '../graph-capture.ts';
import type { WaitOptions } from '../poller.ts';
import { chunks } from './chunks.ts';
import {
  afterQueuedWork,
  copyInTicks,
  describeCopy,
  type HostCopy,
  type QueuePart,
  queueSlice,
} from './host-copy.ts';
import { copyStaged } from './staging.ts';

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
    // Up to 64 KiB the driver returns when it has the bytes, before the device does (seen on an
    // H200): work in a non-blocking stream would still find the old ones.
    if (direction === 'to device')
      check(cu.cuStreamSynchronize(0 as CUstream), 'cuStreamSynchronize', describeCopy(copy));
  });
}

/**
 * Resolves when the copy is done. It begins when the work that was queued in its stream at the
 * call is done, and goes over a stream of its own.
 */
export async function copyAsync(copy: HostCopy, options: WaitOptions = {}): Promise<void> {
  const { byteLength } = copy.host;
  options.signal?.throwIfAborted();
  if (byteLength === 0) return;
  assertNotCapturing('copying to or from the host');
  await afterQueuedWork(copy, options, async (begun) => {
    const isOrdinary = !begun.isLocked && byteLength > DIRECT_BYTE_LENGTH;
    if (isOrdinary && (await copyStaged(begun))) return;
    await copyInTicks(begun, queueSlices(copy, begun.isLocked ? byteLength : SLICE_BYTE_LENGTH));
  });
}

function* queueSlices(copy: HostCopy, maxByteLength: number): Generator<QueuePart> {
  for (const [offset, length] of chunks(copy.host.byteLength, copy.splitOffsets, maxByteLength))
    yield (host, stream) => queueSlice(copy, offset, (host + offset) as Address, length, stream);
}

/**
 * Copies to the host of so few bytes that they cost less through the arena: a small typed array
 * has no address until it is asked for one, and is then moved out of V8's heap.
 */

/** The most bytes that go this way. */
export const MAX_SMALL_COPY_BYTE_LENGTH = 256;

/** Where in {@link arena} the bytes are that {@link copySmallToArena} copied. */
export const SMALL_COPY_ARENA_OFFSET: number = BLOCK - arena.address;

/**
 * Blocks until so many bytes are in the arena, after the work that was queued in the legacy default
 * stream: there they are until the next call of the driver.
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
