/** The options of arrays, and what new arrays are made of. */

import type { CUdeviceptr } from '../../ffi/types.ts';
import { Context, type PlaceOptions } from '../context.ts';
import type { Dtype, DtypeOrName } from '../dtype.ts';
import {
  type AllocateOptions,
  checkMemoryResource,
  DeviceBuffer,
  type MemoryResource,
} from '../memory/buffer.ts';
import { type StreamOption, streamOf } from '../stream.ts';
import { checkInteger } from '../validate.ts';
import type { DeviceItems } from './device-copy.ts';
import {
  type Layout,
  type LayoutOptions,
  layoutExtents,
  makeLayout,
  type Order,
} from './layout.ts';
import { checkShape, type Shape } from './shape.ts';

/** Options of calls that take or return items in sequence. */
export interface OrderOption {
  /** Which index runs fastest: the last one (C) or the first one (F). Default C. */
  readonly order?: Order;
}

/** The memory layout of an array. */
export interface OrderOrStrides extends OrderOption {
  /** In bytes; may be 0 or negative. Default: contiguous, in `order`. */
  readonly strides?: readonly number[];
}

/** Where the memory of an array comes from. */
export interface MemorySourceOptions extends PlaceOptions {
  /** Default: plain device memory. */
  readonly memory?: MemoryResource;
}

/** Options of {@link deviceArray}. */
export interface DeviceArrayOptions extends OrderOrStrides, MemorySourceOptions, StreamOption {}

/** Options of {@link deviceArrayLike}. */
export interface DeviceArrayLikeOptions<D extends Dtype = Dtype>
  extends OrderOption,
    MemorySourceOptions,
    StreamOption {
  /** A dtype or its name. Default: the dtype of the other array. */
  readonly dtype?: DtypeOrName<D>;
}

/** Options of {@link DeviceArray.copy}. */
export interface ArrayCopyOptions extends OrderOption, StreamOption {
  /** The memory resource of the copy. Default: plain memory of the same device. */
  readonly memory?: MemoryResource;
}

/** Options of {@link fromBuffer}. */
export interface FromBufferOptions extends OrderOrStrides, StreamOption {
  /** The byte offset in the buffer of the item at index [0, 0, …]. Default 0. */
  readonly byteOffset?: number;
  /** Whether writes to the array throw. Default false. */
  readonly readOnly?: boolean;
}

// ---- Shapes, layouts and memory of new arrays ----

/** Returns a checked shape; a number is a shape with one axis, as in NumPy. */
export const toShape = (shape: number | Shape): Shape =>
  typeof shape === 'number' ? [checkInteger(shape, 'shape')] : checkShape(shape);

/** The layout of a new array, whose lowest item starts at byte 0. */
export function newLayout(
  shape: number | Shape,
  itemsize: number,
  { order, strides }: Omit<LayoutOptions, 'byteOffset'>,
): Layout {
  if (order !== undefined && strides !== undefined)
    throw new TypeError('give either an order or strides, not both');
  const layout = makeLayout(toShape(shape), itemsize, { order, strides });
  // With negative strides, other items lie before item [0, 0, …].
  return { ...layout, byteOffset: 0 - layoutExtents(layout).low };
}

/** Allocates uninitialized memory for a layout; an empty array allocates nothing. */
export function allocateItems(
  layout: Layout,
  choice: MemorySourceOptions & AllocateOptions,
): DeviceItems {
  const { low, high } = layoutExtents(layout);
  if (high > low) return { layout, memory: DeviceBuffer.allocate(high - low, choice) };
  const { memory, stream, ...place } = choice;
  streamOf(stream);
  const context =
    memory === undefined ? Context.resolve(place) : checkMemoryResource(memory).context;
  const address = 0 as CUdeviceptr;
  return {
    layout,
    memory: new DeviceBuffer({ context, address, byteLength: 0, origin: 'allocated' }),
  };
}
