/** Allocates the memory of new arrays. */

import type { CUdeviceptr } from '../../ffi/types.ts';
import { Context } from '../context.ts';
import { type AllocateOptions, checkMemoryResource, DeviceBuffer } from '../memory/buffer.ts';
import { streamOf } from '../stream.ts';
import { checkInteger } from '../validate.ts';
import type { MemorySourceOptions } from './array-options.ts';
import type { DeviceItems } from './device-copy.ts';
import { type Layout, type LayoutOptions, layoutExtents, makeLayout } from './layout.ts';
import { checkShape, type Shape } from './shape.ts';

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
