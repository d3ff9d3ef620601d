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

// ---- Items that share bytes ----

/** How many partial sums are tried before an overlap is assumed. */
const MAX_TRIES = 10_000;

/** Whether some items are repeated, as in the result of `broadcastTo`. */
export const hasRepeatedItems = ({ shape, strides }: Pick<Layout, 'shape' | 'strides'>): boolean =>
  shape.some((length, axis) => length > 1 && strides[axis] === 0);

interface Axis {
  readonly length: number;
  readonly stride: number;
}

/**
 * Whether two items share a byte, as after a broadcast: a write to one changes the other. Returns
 * true if the search takes too long, which views of ordinary arrays never cause.
 */
export function mayOverlapItself({ shape, strides, itemsize }: Layout): boolean {
  if (sizeOf(shape) < 2) return false;
  const axes: Axis[] = shape
    .map((length, axis) => ({ length, stride: Math.abs(strides[axis] as number) }))
    .filter(({ length }) => length > 1)
    .sort((a, b) => b.stride - a.stride);
  if (axes.at(-1)?.stride === 0) return true;
  // The reach in bytes of each axis with all later ones and one item.
  const reaches = new Array<number>(axes.length + 1);
  reaches[axes.length] = itemsize - 1;
  for (let i = axes.length - 1; i >= 0; i -= 1) {
    const { length, stride } = axes[i] as Axis;
    reaches[i] = (reaches[i + 1] as number) + (length - 1) * stride;
  }
  let tries = MAX_TRIES;

  // Whether two items are less than an item apart: index differences whose distances nearly cancel.
  const canOverlap = (at: number, distance: number, isSame: boolean): boolean => {
    const axis = axes[at];
    if (!axis) return !isSame;
    const reach = reaches[at + 1] as number;
    // The order of the two items does not matter, so the first difference is not negative.
    const least = isSame ? 0 : 1 - axis.length;
    const from = Math.max(least, Math.ceil((-reach - distance) / axis.stride));
    const to = Math.min(axis.length - 1, Math.floor((reach - distance) / axis.stride));
    for (let step = from; step <= to; step += 1) {
      tries -= 1;
      if (tries < 0) return true;
      if (canOverlap(at + 1, distance + step * axis.stride, isSame && step === 0)) return true;
    }
    return false;
  };
  return canOverlap(0, 0, true);
}
