/** The memory layout of an array: shape, strides, item size and offset. */
import { checkInteger } from '../validate.ts';
import { checkIntegers, checkSafe, checkShape, formatShape, type Shape, sizeOf } from './shape.ts';

/** Which axis varies slowest: the first (C) or the last (F, as in Fortran). */
export type Order = 'C' | 'F';

/** The layout of an array; immutable. */
export interface Layout {
  readonly shape: Shape;
  /** The distance in bytes between items along each axis; may be 0 or negative. */
  readonly strides: readonly number[];
  /** The length of an item in bytes. */
  readonly itemsize: number;
  /** The byte offset of the item at index [0, 0, …]. */
  readonly byteOffset: number;
}

/** The parts of a layout besides shape and itemsize. */
export interface LayoutOptions {
  /** The order of contiguous items. Default C. */
  readonly order?: Order | undefined;
  /** In bytes. Default: contiguous. */
  readonly strides?: readonly number[] | undefined;
  /** Default 0. */
  readonly byteOffset?: number | undefined;
}

/** The byte range of a layout's items. */
export interface Extents {
  /** The first byte. */
  readonly low: number;
  /** The byte after the last; equal to `low` if there are no items. */
  readonly high: number;
}

/** @throws TypeError if the value is not an order */
export function checkOrder(order: unknown): Order {
  if (order === 'C' || order === 'F') return order;
  throw new TypeError(`order must be 'C' or 'F', not ${String(order)}`);
}

/** The strides of contiguous items. As in NumPy, empty axes count as if they had length 1. */
export function contiguousStrides(shape: Shape, itemsize: number, order: Order = 'C'): number[] {
  const strides = new Array<number>(shape.length);
  let stride = itemsize;
  for (let i = 0; i < shape.length; i += 1) {
    const axis = order === 'C' ? shape.length - 1 - i : i;
    strides[axis] = stride;
    stride = checkSafe(
      stride * Math.max(shape[axis] as number, 1),
      `an array of shape ${formatShape(shape)}`,
    );
  }
  return strides;
}

/**
 * Makes a checked layout. The caller must check that the items lie within their memory.
 *
 * @throws TypeError or RangeError for a shape, strides, or bytes beyond the safe integers
 * @example
 * makeLayout([2, 3], 4).strides; // [12, 4]
 * makeLayout([2, 3], 4, { order: 'F' }).strides; // [4, 8]
 */
export function makeLayout(
  shape: Shape,
  itemsize: number,
  { order = 'C', strides, byteOffset = 0 }: LayoutOptions = {},
): Layout {
  const sizes = checkShape(shape);
  checkInteger(itemsize, 'itemsize', 1);
  checkInteger(byteOffset, 'byteOffset');
  const contiguous = contiguousStrides(sizes, itemsize, checkOrder(order));
  const layout: Layout = {
    shape: sizes,
    strides: strides === undefined ? contiguous : checkStrides(strides, sizes),
    itemsize,
    byteOffset,
  };
  layoutExtents(layout);
  return layout;
}

function checkStrides(strides: readonly number[], shape: Shape): number[] {
  if (!Array.isArray(strides)) throw new TypeError('strides must be an array of integers');
  const { length } = strides;
  if (length !== shape.length)
    throw new RangeError(`${length} strides do not fit the shape ${formatShape(shape)}`);
  return checkIntegers(strides, 'strides', Number.MIN_SAFE_INTEGER, length);
}

/** The byte range of the items. @throws RangeError beyond the safe integers */
export function layoutExtents({ shape, strides, itemsize, byteOffset }: Layout): Extents {
  if (shape.includes(0)) return { low: byteOffset, high: byteOffset };
  let low = byteOffset;
  let high = checkSafe(byteOffset + itemsize, 'the end of the array');
  for (let axis = 0; axis < shape.length; axis += 1) {
    const reach = ((shape[axis] as number) - 1) * (strides[axis] as number);
    if (reach < 0) low = checkSafe(low + reach, 'the beginning of the array');
    else high = checkSafe(high + reach, 'the end of the array');
  }
  return { low, high };
}

/** @throws RangeError if an item lies outside of a buffer of `byteLength` bytes */
export function checkWithinBuffer(layout: Layout, byteLength: number): void {
  const { low, high } = layoutExtents(layout);
  if (low < 0 || high > byteLength)
    throw new RangeError(
      `items of shape ${formatShape(layout.shape)} with strides ${formatShape(layout.strides)} reach from byte ${low} to ${high}: the buffer has ${byteLength}`,
    );
}

/** The total length of all items in bytes, without gaps. */
export const itemsByteLength = ({ shape, itemsize }: Layout): number => sizeOf(shape) * itemsize;

/**
 * Whether the items are contiguous in an order. As in NumPy, axes of size 1 do not matter, and an
 * empty array is contiguous.
 */
export function isContiguous({ shape, strides, itemsize }: Layout, order: Order): boolean {
  if (shape.includes(0)) return true;
  let expected = itemsize;
  for (let i = 0; i < shape.length; i += 1) {
    const axis = order === 'C' ? shape.length - 1 - i : i;
    const length = shape[axis] as number;
    if (length === 1) continue;
    if (strides[axis] !== expected) return false;
    expected *= length;
  }
  return true;
}
