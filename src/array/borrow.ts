/** Arrays over external memory, given by its address. */
import type { CUdeviceptr } from '../../ffi/types.ts';
import { Context, type PlaceOptions } from '../context.ts';
import {
  type AnyDtypeName,
  type Dtype,
  type DtypeOrName,
  defaultDtype,
  dtype as dtypeNamed,
  type NamedDtype,
} from '../dtype.ts';
import { InternalEvent } from '../internal-event.ts';
import { DeviceBuffer, keepaliveFor } from '../memory/buffer.ts';
import { deviceOfPointer } from '../memory/pointer-attributes.ts';
import { Stream, type StreamOption, streamOf } from '../stream.ts';
import { checkBoolean, checkInteger, checkOptions } from '../validate.ts';
import { newLayout, type OrderOrStrides } from './array-options.ts';
import { DeviceArray } from './device-array.ts';
import { type Extents, type Layout, layoutExtents } from './layout.ts';
import { formatShape, type Shape } from './shape.ts';

/** Options of {@link fromPointer}. */
export interface FromPointerOptions<D extends Dtype = Dtype>
  extends OrderOrStrides,
    PlaceOptions,
    StreamOption {
  readonly shape: number | Shape;
  /** Default float64. */
  readonly dtype?: DtypeOrName<D> | undefined;
  /** An object that must stay alive while the array is used. cuffi only keeps a reference to it. */
  readonly owner?: unknown;
  /** Whether writes to the array throw. Default false. */
  readonly readOnly?: boolean;
}

/**
 * Makes an array over memory that another library owns. Closing the array does not free the memory.
 * The address is not checked: using an invalid one corrupts the context.
 *
 * @param address the device address of the item at index [0, 0, …]; with negative strides other
 * items lie before it. Ignored if the array is empty, and may then be 0
 * @throws TypeError, RangeError
 * @example
 * const array = cuda.fromPointer(address, { shape: [480, 640], dtype: cuda.float32, owner: library });
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__UNIFIED.html
 */
export function fromPointer(
  address: number,
  options: FromPointerOptions & { readonly dtype?: undefined },
): DeviceArray<typeof defaultDtype>;
export function fromPointer<D extends Dtype>(
  address: number,
  options: FromPointerOptions<D> & { readonly dtype: D },
): DeviceArray<D>;
export function fromPointer<N extends AnyDtypeName>(
  address: number,
  options: FromPointerOptions & { readonly dtype: N },
): DeviceArray<NamedDtype<N>>;
export function fromPointer(address: number, options: FromPointerOptions): DeviceArray {
  const { shape, dtype, order, strides, owner, stream, readOnly, ...place } = checkOptions(
    options,
    ['shape', 'dtype', 'order', 'strides', 'owner', 'stream', 'readOnly', 'context', 'device'],
    'fromPointer',
  );
  checkInteger(address, 'address');
  const type = dtypeNamed(dtype ?? defaultDtype);
  const items = {
    address,
    layout: newLayout(shape as number | Shape, type.itemsize, { order, strides }),
    dtype: type,
    readOnly: checkBoolean(readOnly, 'readOnly', false),
  };
  return borrow(items, Context.resolve(place), streamOf(stream), keepaliveFor(owner));
}

// ---- What arrays of other libraries are, however they are described ----

/** Options of {@link fromCudaArrayInterface} and {@link fromDLPack}. */
export interface BorrowOptions extends PlaceOptions, StreamOption {
  /**
   * An object that must stay alive while the array is used. cuffi only keeps a reference to it.
   * Default: the object that describes the array. If that describes memory of cuffi, closing the
   * memory closes the array.
   */
  readonly owner?: unknown;
}

/** Items in external memory. */
export interface ExternalItems<D extends Dtype> {
  /** The address of the item at index [0, 0, …]; ignored if the array is empty. */
  readonly address: number;
  /** Relative to the first byte of the items. */
  readonly layout: Layout;
  readonly dtype: D;
  readonly readOnly: boolean;
}

/** Checks the options of `call`. */
export function checkBorrowOptions(
  options: BorrowOptions | undefined,
  call: string,
): {
  readonly owner: unknown;
  /** The stream for work on the array. */
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

/** The memory behind each description that cuffi made of an array. */
const memoryByDescription = new WeakMap<object, DeviceBuffer>();

/** The address of the first byte of the items, and the address after the last byte. */
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

/** The contexts of external memory. */
export interface ExternalContexts {
  /** The context of the array that the description was made from, or the primary one of the memory's device. */
  readonly producer: Context;
  /** The context that the caller names, by default the producer's. */
  readonly consumer: Context;
}

/**
 * Returns the contexts of external memory.
 *
 * @param device the ordinal of the memory's device, if the description has it
 * @throws CudaError if the driver does not know the first or the last byte of the items
 */
export function contextsOfExternal(
  { address, layout }: ExternalItems<Dtype>,
  place: PlaceOptions,
  description: object,
  device?: number,
): ExternalContexts {
  const { low, high } = rangeOf(address, layout);
  const hasPlace = place.context !== undefined || place.device !== undefined;
  const named = hasPlace ? Context.resolve(place) : undefined;
  const known = memoryByDescription.get(description)?.context;
  if (high === 0) {
    const producer = known ?? named ?? Context.primary(device);
    return { producer, consumer: named ?? producer };
  }
  const ordinal = deviceOfPointer(low);
  deviceOfPointer(high - 1);
  const isOfNamed = named?.device.ordinal === (device ?? ordinal);
  const producer = known ?? (isOfNamed ? named : Context.primary(device ?? ordinal));
  return { producer, consumer: named ?? producer };
}

/** Makes an array over external memory, which closing it does not free. */
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
    keepalive,
    access: readOnly ? 'read' : 'read-write',
  });
  return new DeviceArray({ buffer, dtype, layout, stream, isOwner: false, readOnly });
}

/** Keeps the memory of the array alive as long as its description is reachable. */
export function attachMemory<T extends object>(description: T, { buffer }: DeviceArray): T {
  memoryByDescription.set(description, buffer);
  return description;
}

/** What a borrowed array keeps alive: the given owner, the described memory, or the description. */
export const ownerOrDescription = (description: object, owner: unknown): unknown =>
  keepaliveFor(owner ?? undefined) ?? memoryByDescription.get(description) ?? description;

// ---- Order of work between producer and consumer ----

/** Returns the stream, or the legacy default stream of the context if none is given. */
export const streamOrDefault = (context: Context, stream: Stream | undefined): Stream =>
  stream ?? Stream.legacyDefault({ context });

/**
 * Makes later work of the consumer's stream wait for the work queued so far in the producer's.
 * Returns at once.
 */
export function waitForProducer(producer: Stream, consumer: Stream): void {
  // Default streams of different contexts have the same handle.
  if (producer.handle === consumer.handle && producer.context === consumer.context) return;
  const event = new InternalEvent(producer.context);
  try {
    event.record(producer);
    consumer.enqueueUncounted((handle) => event.makeStreamWait(handle));
    if (producer.context.workCounters.isCounted(producer.handle))
      consumer.context.workCounters.addEventWait(consumer.handle);
  } finally {
    event[Symbol.dispose]();
  }
}
