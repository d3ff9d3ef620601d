/** Copies and fills of buffers, also between devices: checks the arguments and queues the driver calls. */

import { cu } from '../../ffi/driver.ts';
import { CUresult } from '../../ffi/results.ts';
import type { CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { CudaError } from '../errors.ts';
import { Stream, type StreamOption, streamOf, streamOption } from '../stream.ts';
import { checkInteger, checkOptions, formatBytes } from '../validate.ts';
import { assertNotCaptured } from '../work-tracker.ts';
import { chunks } from './chunks.ts';
import { checkFits, type DeviceRange } from './host-copy.ts';
import { noteMemoryUse } from './use-order.ts';

/** Implements `buffer.fill`. */
export function fillBuffer(
  buffer: DeviceRange,
  value: number,
  options?: StreamOption & { readonly elementByteLength?: 1 | 2 | 4 },
): void {
  const { stream, elementByteLength } = checkOptions(
    options,
    ['stream', 'elementByteLength'],
    'fill',
  );
  const width = checkFillElement(value, elementByteLength);
  const { writableAddress: address, byteLength, context } = buffer;
  if (byteLength % width !== 0 || address % width !== 0)
    throw new RangeError(
      `${formatBytes(byteLength)} at ${address} are not whole, aligned elements of ${width} bytes`,
    );
  const checkedStream = streamOf(stream);
  noteMemoryUse(checkedStream?.context ?? context, [context]);
  buffer.orderUse(checkedStream);
  for (const [offset, length] of chunks(byteLength, buffer.splitOffsets)) {
    const target = (address + offset) as CUdeviceptr;
    fillOnDevice(context, target, value, width, length / width, checkedStream);
  }
}

/** Implements `source.copyTo`. */
export function copyBuffer(source: DeviceRange, target: DeviceRange, options?: StreamOption): void {
  const stream = streamOption(options, 'copyTo');
  const [from, to] = [source.readableAddress, target.writableAddress];
  const { byteLength, context } = source;
  checkFits(byteLength, target.byteLength, 'the target');
  noteMemoryUse(stream?.context ?? context, [context, target.context]);
  orderUses([source, target], stream ?? context);
  const isSameDevice = target.context.device === context.device;
  const splits = [...new Set([...source.splitOffsets, ...target.splitOffsets])].sort(
    (a, b) => a - b,
  );
  const splitsInRange = splits.filter((offset) => offset < byteLength);
  for (const [offset, length] of chunks(byteLength, splitsInRange)) {
    const chunkSource = { context, address: (from + offset) as CUdeviceptr };
    const chunkTarget = { context: target.context, address: (to + offset) as CUdeviceptr };
    if (isSameDevice)
      copyOnDevice(context, chunkTarget.address, chunkSource.address, length, stream);
    else copyBetweenDevices(chunkSource, chunkTarget, length, stream);
  }
}

/** Orders work that uses several memories: in a stream, or in the legacy default stream of a context. */
function orderUses(memories: readonly DeviceRange[], place: Stream | Context): void {
  for (const memory of memories) {
    if (place instanceof Stream) memory.orderUse(place);
    else if (memory.context === place) memory.orderUse(undefined);
    else memory.orderUse(Stream.legacyDefault({ context: place }));
  }
}

/** Checks the arguments of a fill. Returns the width of an element in bytes. @throws RangeError */
export function checkFillElement(value: number, elementByteLength: number | undefined): 1 | 2 | 4 {
  const width = elementByteLength ?? 1;
  if (width !== 1 && width !== 2 && width !== 4)
    throw new RangeError(`elementByteLength must be 1, 2 or 4, not ${String(width)}`);
  checkInteger(value, 'value', 0, 2 ** (8 * width) - 1);
  return width;
}

/** Queues a copy within one device. */
function copyOnDevice(
  context: Context,
  target: CUdeviceptr,
  source: CUdeviceptr,
  byteLength: number,
  stream: Stream | undefined,
): void {
  if (byteLength === 0) return;
  const call = (handle: CUstream): void =>
    check(
      cu.cuMemcpyDtoDAsync_v2(target, source, byteLength, handle),
      'cuMemcpyDtoDAsync_v2',
      () => `copying ${formatBytes(byteLength)} on the device`,
    );
  if (stream) stream.enqueue(call);
  else context.enqueue(call);
}

/** Queues a fill of `count` elements of `width` bytes. */
function fillOnDevice(
  context: Context,
  target: CUdeviceptr,
  value: number,
  width: 1 | 2 | 4,
  count: number,
  stream: Stream | undefined,
): void {
  if (count === 0) return;
  const name = ({ 1: 'cuMemsetD8Async', 2: 'cuMemsetD16Async', 4: 'cuMemsetD32Async' } as const)[
    width
  ];
  const call = (handle: CUstream): CUresult => cu[name](target, value, count, handle);
  const checked = (handle: CUstream): void =>
    check(call(handle), name, () => `filling ${formatBytes(count * width)}`);
  if (stream) stream.enqueue(checked);
  else context.enqueue(checked);
}

/** Like {@link fillOnDevice}, for `height` rows that are `pitch` bytes apart. */
export function fillRowsOnDevice(
  context: Context,
  target: CUdeviceptr,
  pitch: number,
  value: number,
  width: 1 | 2 | 4,
  [count, height]: readonly [count: number, height: number],
  stream: Stream | undefined,
): void {
  if (height === 1) {
    fillOnDevice(context, target, value, width, count, stream);
    return;
  }
  const name = (
    { 1: 'cuMemsetD2D8Async', 2: 'cuMemsetD2D16Async', 4: 'cuMemsetD2D32Async' } as const
  )[width];
  const call = (handle: CUstream): void =>
    check(
      cu[name](target, pitch, value, count, height, handle),
      name,
      () => `filling ${height} rows of ${formatBytes(count * width)}`,
    );
  if (stream) stream.enqueue(call);
  else context.enqueue(call);
}

// ---- Copies between the devices of two contexts ----

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
function copyBetweenDevices(
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
