/** Copies to and from arrays, and fills: checks the arguments and queues the work. */

import { arena } from '../../ffi/arena.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { beginWait, throwIfOver, type Wait } from '../deadline.ts';
import type { Dtype } from '../dtype.ts';
import { assertNotCapturing } from '../graph-capture.ts';
import type { CopyOptions, DeviceBuffer } from '../memory/buffer.ts';
import {
  copySmallToArena,
  MAX_SMALL_COPY_BYTE_LENGTH,
  SMALL_COPY_ARENA_OFFSET,
} from '../memory/host-copy.ts';
import { type Stream, type StreamOption, streamOf } from '../stream.ts';
import { typedArrayKind, typedArrayLength } from '../typed-array.ts';
import { checkHostMemory, checkOptions, formatHostValue } from '../validate.ts';
import type { OrderOption } from './array-options.ts';
import { type DeviceItems, queueItems, waitForWork, waitForWorkSync } from './device-copy.ts';
import { queueFill } from './fill.ts';
import { type HostItems, toHostItems } from './host-source.ts';
import { type HostTransfer, transfer, transferSync } from './host-transfer.ts';
import { type HostArray, type HostValues, itemBytes } from './items.ts';
import { checkOrder, isContiguous, type Layout, makeLayout, type Order } from './layout.ts';
import { PinnedArray } from './pinned-array.ts';
import { formatShape, type Shape } from './shape.ts';
import { broadcastTo } from './views.ts';

/** A {@link DeviceArray}, as far as copies need it: the class stands above this file. */
export interface CopyableArray<out D extends Dtype = Dtype> {
  readonly buffer: DeviceBuffer;
  readonly dtype: D;
  readonly shape: Shape;
  readonly size: number;
  readonly byteLength: number;
  readonly layout: Layout;
  readonly stream: Stream | undefined;
  readonly context: DeviceBuffer['context'];
  /** @throws ClosedError */
  readonly address: DeviceBuffer['address'];
  /** @throws ClosedError */
  assertOpen(): void;
  /** @throws TypeError, ClosedError */
  assertWritable(name: string): void;
}

/** Whether the source must have the target's shape, or is broadcast to it. */
export type ShapeRule = 'same' | 'broadcast';

/** A write that is queued, or that starts later (`transfer`). */
export interface Write {
  readonly target: CopyableArray;
  /** The array whose default stream has the work if no stream is given. */
  readonly workArray: CopyableArray;
  readonly stream: Stream | undefined;
  readonly wait: Wait;
  readonly transfer: HostTransfer | undefined;
}

/** Implements `array.copyToHost`. */
export async function readArray<D extends Dtype>(
  array: CopyableArray<D>,
  into: HostValues<D> | undefined,
  options: (CopyOptions & OrderOption) | undefined,
): Promise<HostArray<D>> {
  const known = ['stream', 'signal', 'timeoutMs', 'order'] as const;
  const { stream, order, ...limits } = checkOptions(options, known, 'copyToHost');
  const wait = beginWait(limits, 'copyToHost');
  const { values, transfer: copy } = prepareRead(array, into, order, stream);
  await transfer(copy, wait);
  return values;
}

/** Implements `array.copyToHostSync`. */
export function readArraySync<D extends Dtype>(
  array: CopyableArray<D>,
  into: HostValues<D> | undefined,
  options: (StreamOption & OrderOption) | undefined,
): HostArray<D> {
  const { stream, order } = checkOptions(options, ['stream', 'order'], 'copyToHostSync');
  if (
    into === undefined &&
    stream === undefined &&
    isSmallContiguous(array, checkOrder(order ?? 'C'))
  )
    return readSmall(array);
  const { values, transfer: copy } = prepareRead(array, into, order, stream);
  transferSync(copy);
  return values;
}

/** Options of a write, checked for their names only. */
export interface WriteOptions extends StreamOption, OrderOption {
  readonly wait?: Wait;
}

/** Queues a write from another array, for `copyFrom` and `set`. */
export function beginArrayWrite(
  target: CopyableArray,
  source: CopyableArray,
  options: WriteOptions,
  rule: ShapeRule,
): Write {
  const { givenStream, wait } = checkWrite(target, options);
  const stream = givenStream ?? target.stream ?? source.stream;
  if (target.size > 0) assertNotCapturing('waiting for a copy');
  queueArrayCopy(target, source, stream, rule);
  return { target, workArray: source, stream, wait, transfer: undefined };
}

/** Prepares a write from the host, for `copyFrom` and `set`; queues a write of a single item. */
export function beginHostWrite(
  target: CopyableArray,
  source: unknown,
  options: WriteOptions,
  rule: ShapeRule,
): Write {
  const { dtype, shape } = target;
  const { givenStream, wait, order } = checkWrite(target, options);
  const stream = givenStream ?? target.stream;
  if (rule === 'broadcast' && isSingleItem(source, dtype)) {
    if (target.size > 0) assertNotCapturing('waiting for a fill');
    queueFill(deviceItemsOf(target), itemBytes(source, dtype), stream);
    return { target, workArray: target, stream, wait, transfer: undefined };
  }
  const { memory, layout } = sourceItems(source, target, order, rule);
  const fitted = rule === 'same' ? layout : broadcastTo(layout, shape);
  return makeHostWrite(target, { memory, layout: fitted }, stream, wait);
}

/** A write of items on the host. */
export function makeHostWrite(
  target: CopyableArray,
  { memory, layout }: HostTransfer['host'],
  stream: Stream | undefined,
  wait: Wait,
): Write {
  const host = { memory, layout };
  const transfer: HostTransfer = {
    direction: 'to device',
    host,
    device: deviceItemsOf(target),
    stream,
  };
  return { target, workArray: target, stream, wait, transfer };
}

/** Resolves when a write is done. */
export async function endWrite(write: Write): Promise<void> {
  const { target, workArray, stream, wait, transfer: copy } = write;
  if (copy) await transfer(copy, wait);
  else if (workArray.size > 0) await waitForWork(workArray.buffer, stream, wait);
  target.assertOpen();
}

/** Blocks until a write is done. */
export function endWriteSync({ workArray, stream, transfer: copy }: Write): void {
  if (copy) transferSync(copy);
  else if (workArray.size > 0) waitForWorkSync(workArray.buffer, stream);
}

/** Queues a copy of an array to another one. @throws TypeError, RangeError, ClosedError */
export function queueArrayCopy(
  target: CopyableArray,
  source: CopyableArray,
  stream: Stream | undefined,
  rule: ShapeRule = 'same',
): void {
  target.assertWritable('the target');
  source.assertOpen();
  if (source.dtype.name !== target.dtype.name)
    throw new TypeError(`cannot copy ${source.dtype} to ${target.dtype}`);
  const { memory, layout } = deviceItemsOf(source);
  const items = rule === 'same' ? layout : broadcastTo(layout, target.shape);
  queueItems(deviceItemsOf(target), { memory, layout: items }, stream);
}

/** Queues a fill of all items. @throws TypeError, RangeError, ClosedError */
export function fillArray(
  target: CopyableArray,
  value: unknown,
  options: StreamOption | undefined,
): void {
  const { stream } = checkOptions(options, ['stream'], 'fill');
  const workStream = streamOf(stream) ?? target.stream;
  target.assertWritable('the array');
  queueFill(deviceItemsOf(target), itemBytes(value, target.dtype), workStream);
}

// ---- Arguments and sources ----

/** Where the items of an array are. */
const deviceItemsOf = ({ buffer: memory, layout }: CopyableArray): DeviceItems => ({
  memory,
  layout,
});

function prepareRead<D extends Dtype>(
  array: CopyableArray<D>,
  into: unknown,
  order: Order | undefined,
  stream: Stream | undefined,
): { readonly values: HostArray<D>; readonly transfer: HostTransfer } {
  const { dtype, shape, size } = array;
  array.assertOpen();
  const length = size * dtype.elementsPerItem;
  const values = (into === undefined ? new dtype.TypedArray(length) : into) as HostArray<D>;
  if (!dtype.accepts(values))
    throw new TypeError(
      `into must be a ${dtype.TypedArray.name} for ${dtype}, not ${typedArrayKind(into) ?? formatHostValue(into)}`,
    );
  const givenLength = typedArrayLength(values);
  if (givenLength !== length)
    throw new RangeError(
      `into has ${givenLength} elements, but the array of shape ${formatShape(shape)} has ${length}`,
    );
  const layout = makeLayout(shape, dtype.itemsize, { order });
  const host = { memory: checkHostMemory(values, 'into'), layout };
  const workStream = streamOf(stream) ?? array.stream;
  return {
    values,
    transfer: { direction: 'to host', host, device: deviceItemsOf(array), stream: workStream },
  };
}

/** Whether the items are few and contiguous in the requested order. */
const isSmallContiguous = (array: CopyableArray, order: Order): boolean =>
  array.stream === undefined &&
  array.size > 0 &&
  array.byteLength <= MAX_SMALL_COPY_BYTE_LENGTH &&
  isContiguous(array.layout, order) &&
  array.buffer.splitOffsets.length === 0;

function readSmall<D extends Dtype>(array: CopyableArray<D>): HostArray<D> {
  array.assertOpen();
  const { dtype, size, context, buffer, layout, byteLength } = array;
  buffer.orderUse(undefined);
  const from = (buffer.readableAddress + layout.byteOffset) as CUdeviceptr;
  copySmallToArena(context, from, byteLength);
  const length = size * dtype.elementsPerItem;
  return new dtype.TypedArray(
    arena.buffer,
    SMALL_COPY_ARENA_OFFSET,
    length,
  ).slice() as HostArray<D>;
}

/** @throws TypeError, ClosedError, or the reason of an aborted signal */
function checkWrite(
  target: CopyableArray,
  options: WriteOptions,
): { readonly givenStream: Stream | undefined; readonly wait: Wait; readonly order: Order } {
  target.assertWritable('the array');
  const { wait = {} } = options;
  const order = checkOrder(options.order ?? 'C');
  const givenStream = streamOf(options.stream);
  throwIfOver(wait);
  return { givenStream, wait, order };
}

/** Whether a value is one item rather than an array of them. */
const isSingleItem = (value: unknown, dtype: Dtype): boolean =>
  dtype.isRaw
    ? typedArrayKind(value) === 'Uint8Array' &&
      typedArrayLength(value as Uint8Array) === dtype.itemsize
    : !ArrayBuffer.isView(value) && !Array.isArray(value) && !(value instanceof PinnedArray);

function sourceItems(
  source: unknown,
  { dtype, shape, size }: CopyableArray,
  order: Order,
  rule: ShapeRule,
): HostItems {
  const isFlat = typedArrayKind(source) !== undefined;
  const length = isFlat ? typedArrayLength(source as ArrayBufferView) : 0;
  // A typed array takes the target's shape if it has as many items; otherwise it has one axis.
  const hasTargetShape = isFlat && (rule === 'same' || length === size * dtype.elementsPerItem);
  return toHostItems(source, { dtype, order, shape: hasTargetShape ? shape : undefined });
}
