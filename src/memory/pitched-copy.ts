/** Copies of rows and slices between host and device, on a device, and between two. */

import { writeStruct } from '../../ffi/arena.ts';
import { CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { withAddress } from '../../ffi/native.ts';
import type { Address, CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { assertNotCapturing } from '../graph-capture.ts';
import { checkSignal, pollUntil, type WaitOptions } from '../poller.ts';
import { Stream, type StreamOption, streamOf } from '../stream.ts';
import { checkInstance, checkOptions } from '../validate.ts';
import { type CopyOptions, DeviceBuffer } from './buffer.ts';
import { noteMemoryUse } from './buffer-copy.ts';
import { copyAsync } from './copy.ts';
import { afterQueuedWork, copyInTicks, type HostCopy, type QueuePart } from './host-copy.ts';
import { InternalEvent } from './internal-event.ts';
import { tryEnablePeerAccess } from './peer-copy.ts';
import {
  type Box,
  checkExtent,
  checkRegion,
  type Extent,
  flatten,
  isEmpty,
  type PitchedMemory,
  type Region,
  splitBox,
} from './pitched.ts';

/**
 * How much ordinary memory is copied between two turns of the event loop: less than in one piece,
 * as the driver takes each row by itself.
 */
const MAX_PART_BYTE_LENGTH = 1 << 20;

/** A copy whose arguments are checked. */
interface PitchedCopy {
  readonly box: Box;
  readonly target: Region;
  readonly source: Region;
  readonly stream: Stream | undefined;
}

/**
 * Copies rows and slices between host and device, either way, or between devices, after the work
 * queued in the stream; the event loop turns meanwhile. Until the promise settles both memories
 * belong to the copy, as in {@link DeviceBuffer.copyFrom}. Rows that lie over each other within
 * one memory come out undefined. Ordinary host memory goes in parts between turns of the event
 * loop; page-locked memory in one call.
 *
 * @example
 * // A tile of 64 x 64 floats out of an image of 1024 in a row:
 * await cuda.copyPitched({ memory: tile }, { memory: image, rowPitch: 4096 }, { width: 256, height: 64 });
 * @throws TypeError where both memories are the host's; RangeError where a byte of the region lies
 * beyond its memory; ClosedError, CudaError
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export async function copyPitched(
  target: PitchedMemory,
  source: PitchedMemory,
  extent: Extent,
  options?: CopyOptions,
): Promise<void> {
  const { signal, stream } = checkOptions(options, ['stream', 'signal'], 'copyPitched');
  const wait = checkSignal(signal);
  const copy = checkCopy(target, source, extent, stream, 'copyPitched');
  wait.signal?.throwIfAborted();
  if (isEmpty(copy.box)) return;
  assertNotCapturing('waiting for a copy');
  const host = toHostCopy(copy);
  if (!host) await copyOnDevices(copy, wait);
  else if (isFlat(copy.box)) await copyAsync(host, wait);
  else
    await afterQueuedWork(host, wait, (begun) =>
      copyInTicks(begun, queueParts(copy, begun.isLocked ? Infinity : MAX_PART_BYTE_LENGTH)),
    );
}

/** As {@link copyPitched}, but blocks until it is done. */
export function copyPitchedSync(
  target: PitchedMemory,
  source: PitchedMemory,
  extent: Extent,
  options?: StreamOption,
): void {
  const { stream } = checkOptions(options, ['stream'], 'copyPitchedSync');
  const copy = checkCopy(target, source, extent, stream, 'copyPitchedSync');
  if (isEmpty(copy.box)) return;
  assertNotCapturing('waiting for a copy');
  queueCopy(copy).synchronizeSync();
}

/**
 * Queues a copy of rows and slices on a device, or from one device to another: peer access is
 * enabled for it, where there is any. Rows that lie over each other within one memory come out
 * undefined.
 *
 * @throws TypeError where a memory is the host's; RangeError, ClosedError, CudaError as
 * {@link copyPitched}
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function queuePitchedCopy(
  target: PitchedMemory,
  source: PitchedMemory,
  extent: Extent,
  options?: StreamOption,
): void {
  const { stream } = checkOptions(options, ['stream'], 'queuePitchedCopy');
  const copy = checkCopy(target, source, extent, stream, 'queuePitchedCopy');
  for (const name of ['target', 'source'] as const)
    checkInstance(copy[name].memory, DeviceBuffer, `${name}.memory`);
  if (!isEmpty(copy.box)) queueCopy(copy);
}

function checkCopy(
  to: PitchedMemory,
  from: PitchedMemory,
  extent: Extent,
  stream: unknown,
  call: string,
): PitchedCopy {
  const box = checkExtent(extent, call);
  const target = checkRegion(to, 'target', box, call);
  const source = checkRegion(from, 'source', box, call);
  if (!contextOf(target) && !contextOf(source))
    throw new TypeError(`${call}: both memories are the host's, at least one must be a device's`);
  return { box: flatten(box, [target, source]), target, source, stream: streamOf(stream) };
}

const contextOf = ({ memory }: Region): Context | undefined =>
  memory instanceof DeviceBuffer ? memory.context : undefined;

const isFlat = ({ height, depth }: Box): boolean => height === 1 && depth === 1;

/** The copy as one of host memory; undefined where both sides are on devices. */
function toHostCopy({ target, source, stream }: PitchedCopy): HostCopy | undefined {
  const isToDevice = source.memory instanceof Uint8Array;
  const [host, device] = isToDevice ? [source, target] : [target, source];
  const buffer = device.memory;
  if (!(host.memory instanceof Uint8Array) || !(buffer instanceof DeviceBuffer)) return undefined;
  const { byteOffset, byteLength } = host;
  return {
    direction: isToDevice ? 'to device' : 'to host',
    context: buffer.context,
    host: host.memory.subarray(byteOffset, byteOffset + byteLength),
    device: () => (buffer.address + device.byteOffset) as CUdeviceptr,
    splitOffsets: device.splitOffsets,
    stream,
  };
}

/** The calls that make up a copy; each asks for addresses anew, so that closing is noticed. */
function* queueParts(copy: PitchedCopy, maxByteLength = Infinity): Generator<QueuePart> {
  const { target, source } = copy;
  for (const { box, offsets } of splitBox(copy.box, [target, source], maxByteLength)) {
    const [to = 0, from = 0] = offsets;
    yield (host, stream) =>
      queueRows(operandAt(target, to, host), operandAt(source, from, host), box, stream);
  }
}

/** The rows of a region from `offset` on; `host` is where it begins, if it is host memory. */
function operandAt(region: Region, offset: number, host: Address): PitchedOperand {
  const { memory, byteOffset, rowPitch, slicePitch } = region;
  const start = memory instanceof DeviceBuffer ? memory.address + byteOffset : host;
  return { address: start + offset, rowPitch, slicePitch, context: contextOf(region) };
}

/** Queues all of a copy; answers in which stream. */
function queueCopy(copy: PitchedCopy): Stream {
  const { target, source } = copy;
  const contexts = [source, target].flatMap((region) => contextOf(region) ?? []);
  const [context] = contexts as [Context];
  const stream = copy.stream ?? Stream.legacyDefault({ context });
  noteMemoryUse(stream.context, contexts);
  const [from, to] = contexts;
  if (from && to && from.device !== to.device) tryEnablePeerAccess(from, to);
  const host = [source, target].find(({ memory }) => memory instanceof Uint8Array);
  const queueAll = (start: Address): void =>
    stream.enqueue((handle) => {
      for (const part of queueParts(copy)) part(start, handle);
    });
  if (host?.memory instanceof Uint8Array) {
    const { byteOffset, memory } = host;
    withAddress(memory, (address) => queueAll((address + byteOffset) as Address));
  } else queueAll(0 as Address);
  return stream;
}

/** Queues a copy between devices, and resolves when it is done. */
async function copyOnDevices(copy: PitchedCopy, options: WaitOptions): Promise<void> {
  const stream = queueCopy(copy);
  const event = new InternalEvent(stream.context);
  try {
    event.record(stream);
    await pollUntil(() => event.isDone, options);
  } finally {
    event[Symbol.dispose]();
  }
  // Throws if a buffer was closed, or its context reset, before it was done.
  for (const { memory } of [copy.source, copy.target])
    if (memory instanceof DeviceBuffer) memory.address;
}

/** Rows and slices copied by one call of the driver. */

/** One side of a call: where its first row begins, and how its rows lie. */
export interface PitchedOperand {
  readonly address: number;
  readonly rowPitch: number;
  readonly slicePitch: number;
  /** Whose memory it is; undefined for the host's. */
  readonly context: Context | undefined;
}

/** Queues one copy; at least one side is on a device. */
function queueRows(
  target: PitchedOperand,
  source: PitchedOperand,
  box: Box,
  stream: CUstream,
): void {
  const fields = {
    srcMemoryType: memoryType(source),
    srcHost: source.address,
    srcDevice: source.address,
    srcPitch: pitchOf(source, box),
    srcHeight: rowsPerSlice(source, box),
    dstMemoryType: memoryType(target),
    dstHost: target.address,
    dstDevice: target.address,
    dstPitch: pitchOf(target, box),
    dstHeight: rowsPerSlice(target, box),
    WidthInBytes: box.width,
    Height: box.height,
    Depth: box.depth,
  };
  const doing = (): string => `copying ${box.height * box.depth} rows of ${box.width} bytes`;
  if (areOnDifferentDevices(target, source)) {
    const contexts = {
      srcContext: source.context?.handle ?? 0,
      dstContext: target.context?.handle ?? 0,
    };
    const struct = writeStruct('CUDA_MEMCPY3D_PEER', { ...fields, ...contexts });
    check(cu.cuMemcpy3DPeerAsync(struct, stream), 'cuMemcpy3DPeerAsync', doing);
  } else {
    const struct = writeStruct('CUDA_MEMCPY3D', fields);
    check(cu.cuMemcpy3DAsync_v2(struct, stream), 'cuMemcpy3DAsync_v2', doing);
  }
}

/** Whether the sides are on two devices. */
const areOnDifferentDevices = (target: PitchedOperand, source: PitchedOperand): boolean =>
  target.context !== undefined &&
  source.context !== undefined &&
  target.context.device !== source.context.device;

const memoryType = ({ context }: PitchedOperand): number =>
  context ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;

// Where there is but one row or slice, the caller's pitch says nothing.
const pitchOf = ({ rowPitch }: PitchedOperand, { width, height, depth }: Box): number =>
  height === 1 && depth === 1 ? width : rowPitch;

const rowsPerSlice = ({ rowPitch, slicePitch }: PitchedOperand, { height, depth }: Box): number =>
  depth === 1 ? height : slicePitch / rowPitch;
