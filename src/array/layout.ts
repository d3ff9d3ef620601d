/** Where the items of an array lie in memory: shape, strides, item size, and where they begin. */
import { checkInteger } from '../validate.ts';
import { checkIntegers, checkSafe, checkShape, formatShape, type Shape, sizeOf } from './shape.ts';

/** Which axis varies slowest: the first (C) or the last (F, as Fortran has it). */
export type Order = 'C' | 'F';

/** The layout of an array; never changed. */
export interface Layout {
  readonly shape: Shape;
  /** The bytes from an item to the next along each axis; 0 and negative ones are legal. */
  readonly strides: readonly number[];
  /** The bytes of one item. */
  readonly itemsize: number;
  /** The byte of the memory at which the item of index [0, 0, …] begins. */
  readonly byteOffset: number;
}

/** What is known of a layout besides its shape and itemsize. */
export interface LayoutOptions {
  /** The order of contiguous items. Default C. */
  readonly order?: Order | undefined;
  /** In bytes. Default: contiguous. */
  readonly strides?: readonly number[] | undefined;
  /** Default 0. */
  readonly byteOffset?: number | undefined;
}

/** The bytes that a layout touches. */
export interface Extents {
  /** The first one. */
  readonly low: number;
  /** The one behind the last; as low where there are no items. */
  readonly high: number;
}

/** @throws TypeError for any other order */
export function checkOrder(order: unknown): Order {
  if (order === 'C' || order === 'F') return order;
  throw new TypeError(`order must be 'C' or 'F', not ${String(order)}`);
}

/** The strides of items that follow each other. Empty axes count as NumPy counts them: not. */
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
 * A layout, checked. That its items lie within a memory is for the caller to see, by its extents.
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

/** The bytes that the items touch. @throws RangeError beyond the safe integers */
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

/** @throws RangeError where an item lies outside of a memory of `byteLength` bytes */
export function checkWithinBuffer(layout: Layout, byteLength: number): void {
  const { low, high } = layoutExtents(layout);
  if (low < 0 || high > byteLength)
    throw new RangeError(
      `items of shape ${formatShape(layout.shape)} with strides ${formatShape(layout.strides)} reach from byte ${low} to ${high}: the buffer has ${byteLength}`,
    );
}

/** The bytes of all items, without those between them. */
export const itemsByteLength = ({ shape, itemsize }: Layout): number => sizeOf(shape) * itemsize;

/**
 * Whether the items follow each other in an order. As NumPy has it: axes of size 1 say nothing, and
 * an array without items is contiguous.
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
