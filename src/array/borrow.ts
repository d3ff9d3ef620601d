/** Arrays over memory that others own, by its address. */
import type { CUdeviceptr } from '../../ffi/types.ts';
import { Context, type PlaceOptions } from '../context.ts';
import type { Dtype } from '../dtype.ts';
import { DeviceBuffer, keepaliveFor } from '../memory/buffer.ts';
import { InternalEvent } from '../memory/internal-event.ts';
import { deviceOfPointer } from '../memory/pointer-attributes.ts';
import { Stream, type StreamOption, streamOf } from '../stream.ts';
import { checkInteger, checkOptions } from '../validate.ts';
import { DeviceArray } from './device-array.ts';
import { type Extents, type Layout, layoutExtents } from './layout.ts';
import { formatShape } from './shape.ts';

/** Options of {@link fromCudaArrayInterface} and {@link fromDLPack}. */
export interface BorrowOptions extends PlaceOptions, StreamOption {
  /**
   * What must stay alive while the array is used; held, never touched, nor asked if it is closed.
   * Default: what the array is made of; where that is memory of cuffi, the array is closed with it.
   */
  readonly owner?: unknown;
}

/** Items in memory of others. */
export interface ExternalItems<D extends Dtype> {
  /** Of the item of index [0, 0, …]; of no meaning where there are no items. */
  readonly address: number;
  /** From the first byte of the items on. */
  readonly layout: Layout;
  readonly dtype: D;
  readonly readOnly: boolean;
}

/** The options of `call`, checked. */
export function checkBorrowOptions(
  options: BorrowOptions | undefined,
  call: string,
): {
  readonly owner: unknown;
  /** Where the work on the array goes. */
  readonly consumer: Stream | undefined;
  readonly place: PlaceOptions;
} {
  const { owner, stream, ...place } = checkOptions(
    options,
    ['owner', 'stream', 'context', 'device'],
    call,
  );
  return { owner, consumer: streamOf(stream), place };
}

/** By what is given away of an array: its memory. */
const memoryByDescription = new WeakMap<object, DeviceBuffer>();

/** The addresses of the first byte of the items, and of the one behind the last. */
function rangeOf(address: number, layout: Layout): Extents {
  const { low, high } = layoutExtents(layout);
  if (high === low) return { low: 0, high: 0 };
  checkInteger(address, 'the address', 1);
  const begin = address - layout.byteOffset;
  if (begin < 1 || begin + high > Number.MAX_SAFE_INTEGER)
    throw new RangeError(
      `items of shape ${formatShape(layout.shape)} with strides ${formatShape(layout.strides)} do not fit around address ${address}`,
    );
  return { low: begin, high: begin + high };
}

/**
 * The context that memory of others is used in: the one that is named, that of the array that
 * `given` was made of, or the primary one of the memory's device.
 *
 * @param device which that is, where `given` says so
 * @throws CudaError where the driver knows no memory at the first byte of the items, or at the last
 */
export function contextOfExternal(
  { address, layout }: ExternalItems<Dtype>,
  place: PlaceOptions,
  description: object,
  device?: number,
): Context {
  const { low, high } = rangeOf(address, layout);
  const hasPlace = place.context !== undefined || place.device !== undefined;
  const namedContext = hasPlace
    ? Context.resolve(place)
    : memoryByDescription.get(description)?.context;
  if (high === 0) return namedContext ?? Context.primary(device);
  const ordinal = deviceOfPointer(low);
  deviceOfPointer(high - 1);
  return namedContext ?? Context.primary(device ?? ordinal);
}

/** An array over memory of others: closing it forgets it. @param keepalive a resource closes it */
export function borrow<D extends Dtype>(
  { address, layout, dtype, readOnly }: ExternalItems<D>,
  context: Context,
  stream: Stream | undefined,
  keepalive: unknown,
): DeviceArray<D> {
  const { low, high } = rangeOf(address, layout);
  const buffer = new DeviceBuffer({
    context,
    address: low as CUdeviceptr,
    byteLength: high - low,
    origin: 'borrowed',
    keepalive: keepalive,
    access: readOnly ? 'read' : 'read-write',
  });
  return new DeviceArray({ buffer, dtype, layout, stream, isOwner: false, readOnly });
}

/** Makes whoever keeps `given` keep the memory of the array. */
export function attachMemory<T extends object>(description: T, { buffer }: DeviceArray): T {
  memoryByDescription.set(description, buffer);
  return description;
}

/** What a borrowed array keeps: the owner that is named, else the memory behind `given`, or itself. */
export const ownerOrDescription = (description: object, owner: unknown): unknown =>
  keepaliveFor(owner ?? undefined) ?? memoryByDescription.get(description) ?? description;

/** What interchange promises of order: the consumer's stream waits for the producer's. */

/** The stream that is meant: the legacy default one of the context where none is named. */
export const streamOrDefault = (context: Context, stream: Stream | undefined): Stream =>
  stream ?? Stream.legacyDefault({ context });

/**
 * Makes what is queued in a stream from now on wait for what another one has been given so far.
 * Blocks nobody.
 */
export function waitForProducer(producer: Stream, consumer: Stream): void {
  // The default streams' handles say nothing without their context.
  if (producer.handle === consumer.handle && producer.context === consumer.context) return;
  const event = new InternalEvent(producer.context);
  try {
    event.record(producer);
    consumer.enqueue((handle) => event.makeStreamWait(handle));
  } finally {
    event[Symbol.dispose]();
  }
}
