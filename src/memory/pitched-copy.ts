/** Copies of rows and slices between host and device, within a device, and between devices. */

import { writeStruct } from '../../ffi/arena.ts';
import { CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { libc } from '../../ffi/linux/libc.ts';
import { withAddress } from '../../ffi/native.ts';
import type { Address, CUdeviceptr, CUstream } from '../../ffi/types.ts';
import { check } from '../check.ts';
import type { Context } from '../context.ts';
import { beginWait, throwIfOver, type Wait } from '../deadline.ts';
import { assertNotCapturing } from '../graph-capture.ts';
import { workDone } from '../internal-event.ts';
import { Stream, type StreamOption, streamOf } from '../stream.ts';
import { checkInstance, checkOptions } from '../validate.ts';
import { hasWaitingStreams } from '../waits/waiting-streams.ts';
import { type CopyOptions, DeviceBuffer } from './buffer.ts';
import { tryEnablePeerAccess } from './buffer-copy.ts';
import {
  afterQueuedWork,
  copyAsync,
  copyBesideWaits,
  copyInTicks,
  copyLockedInTicks,
  type HostCopy,
  type LockedPart,
  type QueuePart,
} from './host-copy.ts';
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
import { STAGING } from './staging.ts';
import { noteMemoryUse } from './use-order.ts';

/** A copy with checked arguments. */
interface PitchedCopy {
  readonly box: Box;
  readonly target: Region;
  readonly source: Region;
  readonly stream: Stream | undefined;
}

/**
 * How much pageable memory is copied per event loop iteration. Less than for contiguous memory,
 * because the driver copies each row separately.
 */
const MAX_PART_BYTE_LENGTH = 1 << 20;

/**
 * Copies rows and slices between host and device in either direction, or between devices, after the
 * work queued in the stream. Does not block the event loop. Until the promise settles, use neither
 * memory, as with {@link DeviceBuffer.copyFrom}. If source and target rows overlap in one memory,
 * the result is undefined. Pageable host memory is copied in parts, one per event loop iteration;
 * page-locked memory in one call.
 *
 * @example
 * // A tile of 64 x 64 floats out of an image of 1024 in a row:
 * await cuda.copyPitched({ memory: tile }, { memory: image, rowPitch: 4096 }, { width: 256, height: 64 });
 * @throws TypeError if both memories are on the host; RangeError if a region does not fit in its
 * memory; ClosedError, CudaError
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export async function copyPitched(
  target: PitchedMemory,
  source: PitchedMemory,
  extent: Extent,
  options?: CopyOptions,
): Promise<void> {
  const known = ['stream', 'signal', 'timeoutMs'] as const;
  const { stream, ...limits } = checkOptions(options, known, 'copyPitched');
  await copyPitchedWithin(target, source, extent, stream, beginWait(limits, 'copyPitched'));
}

/** As {@link copyPitched}, within a wait that has begun. */
export async function copyPitchedWithin(
  target: PitchedMemory,
  source: PitchedMemory,
  extent: Extent,
  stream: Stream | undefined,
  wait: Wait,
): Promise<void> {
  const copy = checkCopy(target, source, extent, stream, 'copyPitched');
  throwIfOver(wait);
  if (isEmpty(copy.box)) return;
  assertNotCapturing('waiting for a copy');
  const host = toHostCopy(copy);
  if (!host) await copyOnDevices(copy, wait);
  else if (isFlat(copy.box)) await copyAsync(host, wait);
  else
    await afterQueuedWork(host, wait, (started) => {
      const parts = queueParts(copy, started.isLocked ? Infinity : MAX_PART_BYTE_LENGTH);
      return started.isLocked || !hasWaitingStreams(host.context)
        ? copyInTicks(started, parts)
        : copyLockedInTicks(started, parts, lockedParts(copy));
    });
}

/** Like {@link copyPitched}, but blocks until the copy is done. */
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
  const host = toHostCopy(copy);
  if (host && hasWaitingStreams(host.context))
    copyBesideWaits(host, queueParts(copy), lockedParts(copy));
  else queueCopy(copy).synchronizeSync();
}

/**
 * Queues a copy of rows and slices within a device, or from one device to another. Peer access is
 * enabled if the devices support it. If source and target rows overlap in one memory, the result is
 * undefined.
 *
 * @throws TypeError if a memory is on the host; RangeError, ClosedError, CudaError as
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

// ---- How a copy is checked, split and queued ----

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
    throw new TypeError(`${call}: both memories are on the host: at least one must be on a device`);
  return { box: flatten(box, [target, source]), target, source, stream: streamOf(stream) };
}

const contextOf = ({ memory }: Region): Context | undefined =>
  memory instanceof DeviceBuffer ? memory.context : undefined;

const isFlat = ({ height, depth }: Box): boolean => height === 1 && depth === 1;

/** The copy as a {@link HostCopy}; undefined if both sides are on devices. */
function toHostCopy({ target, source, stream }: PitchedCopy): HostCopy | undefined {
  const isToDevice = source.memory instanceof Uint8Array;
  const [host, device] = isToDevice ? [source, target] : [target, source];
  const buffer = device.memory;
  if (!(host.memory instanceof Uint8Array) || !(buffer instanceof DeviceBuffer)) return undefined;
  buffer.orderUse(stream);
  const { byteOffset, byteLength } = host;
  return {
    direction: isToDevice ? 'to device' : 'to host',
    context: buffer.context,
    host: host.memory.subarray(byteOffset, byteOffset + byteLength),
    device: () => (buffer.readableAddress + device.byteOffset) as CUdeviceptr,
    splitOffsets: device.splitOffsets,
    stream,
  };
}

/** The driver calls of a copy. Each reads the addresses again, so a closed buffer is noticed. */
function* queueParts(copy: PitchedCopy, maxByteLength = Infinity): Generator<QueuePart> {
  const { target, source } = copy;
  for (const { box, offsets } of splitBox(copy.box, [target, source], maxByteLength)) {
    const [to = 0, from = 0] = offsets;
    yield (host, stream) =>
      queueRows(operandAt(target, to, host), operandAt(source, from, host), box, stream);
  }
}

/** The parts of a copy of pageable memory. In page-locked memory the rows follow each other. */
function* lockedParts(copy: PitchedCopy): Generator<LockedPart> {
  const { target, source } = copy;
  const isToDevice = source.memory instanceof Uint8Array;
  const { rowPitch, slicePitch } = isToDevice ? source : target;
  for (const { box, offsets } of splitBox(copy.box, [target, source], STAGING.slotByteLength)) {
    const [to = 0, from = 0] = offsets;
    const { width, height, depth } = box;
    const packed = (address: number): PitchedOperand => ({
      address,
      rowPitch: width,
      slicePitch: width * height,
      context: undefined,
    });
    yield {
      moveOnHost(host, locked) {
        let row = locked as number;
        for (let z = 0; z < depth; z += 1)
          for (let y = 0; y < height; y += 1, row += width) {
            const pageable = host + (isToDevice ? from : to) + z * slicePitch + y * rowPitch;
            if (isToDevice) libc.memmove(row, pageable, width);
            else libc.memmove(pageable, row, width);
          }
      },
      queue: (locked, stream) =>
        isToDevice
          ? queueRows(operandAt(target, to, locked), packed(locked), box, stream)
          : queueRows(packed(locked), operandAt(source, from, locked), box, stream),
    };
  }
}

/**
 * The operand of a driver call: a region from `offset` on. If it is host memory, it starts at
 * `host`.
 */
function operandAt(region: Region, offset: number, host: Address): PitchedOperand {
  const { memory, byteOffset, rowPitch, slicePitch } = region;
  const start = memory instanceof DeviceBuffer ? memory.readableAddress + byteOffset : host;
  return { address: start + offset, rowPitch, slicePitch, context: contextOf(region) };
}

/** Queues a whole copy. Returns the stream. */
function queueCopy(copy: PitchedCopy): Stream {
  const { target, source } = copy;
  const contexts = [source, target].flatMap((region) => contextOf(region) ?? []);
  const [context] = contexts as [Context];
  const stream = copy.stream ?? Stream.legacyDefault({ context });
  noteMemoryUse(stream.context, contexts);
  for (const { memory } of [source, target])
    if (memory instanceof DeviceBuffer) memory.orderUse(stream);
  const [from, to] = contexts;
  if (from && to && from.device !== to.device) tryEnablePeerAccess(from, to);
  const host = [source, target].find(({ memory }) => memory instanceof Uint8Array);
  const queueAll = (start: Address): void => {
    for (const part of queueParts(copy)) stream.enqueue((handle) => part(start, handle));
  };
  if (host?.memory instanceof Uint8Array) {
    const { byteOffset, memory } = host;
    withAddress(memory, (address) => queueAll((address + byteOffset) as Address));
  } else queueAll(0 as Address);
  return stream;
}

/** Queues a copy of device memory, and resolves when it is done. */
async function copyOnDevices(copy: PitchedCopy, wait: Wait): Promise<void> {
  const stream = queueCopy(copy);
  await workDone(stream.context, stream, wait);
  // Throws if a buffer was closed or its context reset meanwhile.
  for (const { memory } of [copy.source, copy.target])
    if (memory instanceof DeviceBuffer) memory.assertOpen();
}

/** One operand of a driver call: the address of its first row, and its pitches. */
export interface PitchedOperand {
  readonly address: number;
  readonly rowPitch: number;
  readonly slicePitch: number;
  /** The context of device memory; undefined for host memory. */
  readonly context: Context | undefined;
}

/** Queues one driver call. At least one operand is on a device. */
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
  const describe = (): string => `copying ${box.height * box.depth} rows of ${box.width} bytes`;
  if (areOnDifferentDevices(target, source)) {
    const contexts = {
      srcContext: source.context?.handle ?? 0,
      dstContext: target.context?.handle ?? 0,
    };
    const struct = writeStruct('CUDA_MEMCPY3D_PEER', { ...fields, ...contexts });
    check(cu.cuMemcpy3DPeerAsync(struct, stream), 'cuMemcpy3DPeerAsync', describe);
  } else {
    const struct = writeStruct('CUDA_MEMCPY3D', fields);
    check(cu.cuMemcpy3DAsync_v2(struct, stream), 'cuMemcpy3DAsync_v2', describe);
  }
}

const areOnDifferentDevices = (target: PitchedOperand, source: PitchedOperand): boolean =>
  target.context !== undefined &&
  source.context !== undefined &&
  target.context.device !== source.context.device;

const memoryType = ({ context }: PitchedOperand): number =>
  context ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;

// With a single row, the caller's pitch has no meaning.
const pitchOf = ({ rowPitch }: PitchedOperand, { width, height, depth }: Box): number =>
  height === 1 && depth === 1 ? width : rowPitch;

const rowsPerSlice = ({ rowPitch, slicePitch }: PitchedOperand, { height, depth }: Box): number =>
  depth === 1 ? height : slicePitch / rowPitch;
