/** The copies and fills of buffers: their arguments, checked, and where they go. */
import type { CUdeviceptr } from '../../ffi/types.ts';
import {
  checkHostMemory,
  checkInteger,
  checkOptions,
  type HostMemory,
  shown,
} from '../arguments.ts';
import { isCapturing, noteCaptured } from '../capture.ts';
import type { Context } from '../context.ts';
import { Resource } from '../resource.ts';
import type { Stream } from '../stream.ts';
import { checkSignal } from '../wait.ts';
import type { DeviceBuffer } from './buffer.ts';
import type { CopyOptions, FillOptions, StreamOption } from './buffer-options.ts';
import { copyAwaited, copySync } from './copy.ts';
import { copyOnDevice, fillOnDevice } from './on-device.ts';
import { copyBetweenDevices } from './peer.ts';
import { pieces } from './pieces.ts';
import type { HostCopy } from './transfer.ts';

type Direction = HostCopy['direction'];

/** Behind `buffer.fill`. */
export function fillBuffer(buffer: DeviceBuffer, value: number, options?: FillOptions): void {
  const { stream, elementByteLength } = checkOptions(
    options,
    ['stream', 'elementByteLength'],
    'fill',
  );
  const width = checkElement(value, elementByteLength);
  const { writableAddress: address, byteLength, context } = buffer;
  if (byteLength % width !== 0 || address % width !== 0)
    throw new RangeError(
      `${byteLength} bytes at ${address} are no whole, aligned elements of ${width} bytes`,
    );
  const ordered = streamOf(stream);
  noteVisits(ordered?.context ?? context, [context]);
  for (const [offset, length] of pieces(byteLength, buffer.cuts)) {
    const target = (address + offset) as CUdeviceptr;
    fillOnDevice(context, target, value, width, length / width, ordered);
  }
}

/** Behind `source.copyTo`. */
export function copyBuffer(
  source: DeviceBuffer,
  target: DeviceBuffer,
  options?: StreamOption,
): void {
  const stream = streamOption(options, 'copyTo');
  const [from, to] = [source.address, target.writableAddress];
  const { byteLength, context } = source;
  checkFits(byteLength, target.byteLength, 'the target');
  noteVisits(stream?.context ?? context, [context, target.context]);
  const isNear = target.context.device === context.device;
  const cuts = [...new Set([...source.cuts, ...target.cuts])].sort((a, b) => a - b);
  const within = cuts.filter((offset) => offset < byteLength);
  for (const [offset, length] of pieces(byteLength, within)) {
    const start = { context, address: (from + offset) as CUdeviceptr };
    const end = { context: target.context, address: (to + offset) as CUdeviceptr };
    if (isNear) copyOnDevice(context, end.address, start.address, length, stream);
    else copyBetweenDevices(start, end, length, stream);
  }
}

/** Behind `copyFrom` and `copyToHost`. */
export async function copyHost(
  buffer: DeviceBuffer,
  direction: Direction,
  memory: HostMemory,
  options: CopyOptions | undefined,
): Promise<void> {
  const call = direction === 'to device' ? 'copyFrom' : 'copyToHost';
  const { signal, stream } = checkOptions(options, ['stream', 'signal'], call);
  const wait = checkSignal(signal);
  await copyAwaited(hostCopy(buffer, direction, memory, stream), wait);
}

/** Behind `copyFromSync` and `copyToHostSync`. */
export function copyHostSync(
  buffer: DeviceBuffer,
  direction: Direction,
  memory: HostMemory,
  options: StreamOption | undefined,
): void {
  const call = direction === 'to device' ? 'copyFromSync' : 'copyToHostSync';
  const { stream } = checkOptions(options, ['stream'], call);
  copySync(hostCopy(buffer, direction, memory, stream));
}

function hostCopy(
  buffer: DeviceBuffer,
  direction: Direction,
  memory: HostMemory,
  stream: Stream | undefined,
): HostCopy {
  const host = checkHostMemory(memory, direction === 'to device' ? 'source' : 'into');
  checkFits(host.byteLength, buffer.byteLength, 'the buffer');
  const ordered = streamOf(stream);
  const device = (): CUdeviceptr =>
    direction === 'to device' ? buffer.writableAddress : buffer.address;
  device(); // a closed buffer, or a read-only one, is refused now, not when the copy begins
  return {
    direction,
    context: buffer.context,
    host,
    device,
    cuts: buffer.cuts,
    stream: ordered,
  };
}

/** Memory of these contexts must outlive the work that is queued in a stream of `where`. */
export function noteVisits(where: Context, contexts: readonly Context[]): void {
  // The commonest case, without its loops.
  if (contexts.length === 1 && contexts[0] === where && !isCapturing()) return;
  for (const { activity } of contexts) activity.visitedBy(where.activity);
  noteCaptured(contexts);
}

/** The stream of a call's options, if it names one. @throws TypeError for anything else */
export function streamOf(stream: unknown): Stream | undefined {
  if (stream !== undefined && !Resource.is(stream, 'Stream'))
    throw new TypeError(`stream must be a Stream, not ${shown(stream)}`);
  return stream as Stream | undefined;
}

/**
 * The stream of options that have nothing else. That there is one property is seen in a third of the
 * time that its name takes, which the calls that only queue would feel.
 *
 * @throws TypeError as checkOptions
 */
export function streamOption(options: StreamOption | undefined, call: string): Stream | undefined {
  if (options === undefined) return undefined;
  let count = 0;
  for (const _ in options) count += 1;
  const isPlain =
    count === 1 && Object.getPrototypeOf(options) === Object.prototype && 'stream' in options;
  return streamOf(isPlain ? options.stream : checkOptions(options, ['stream'], call).stream);
}

/** The bytes of an element that a fill sets to `value`. @throws RangeError */
export function checkElement(value: number, elementByteLength: number | undefined): 1 | 2 | 4 {
  const width = elementByteLength ?? 1;
  if (width !== 1 && width !== 2 && width !== 4)
    throw new RangeError(`elementByteLength must be 1, 2 or 4, not ${String(width)}`);
  checkInteger(value, 'value', 0, 2 ** (8 * width) - 1);
  return width;
}

function checkFits(byteLength: number, available: number, where: string): void {
  if (byteLength > available)
    throw new RangeError(`${byteLength} bytes do not fit in ${where}, which has ${available}`);
}
