/** Views whose items stay what they are: other axes, or the same items more than once. */

import { checkInteger } from '../validate.ts';
import { checkOrder, contiguousStrides, isContiguous, type Layout, type Order } from './layout.ts';
import {
  checkAxes,
  checkAxis,
  checkSafe,
  checkShape,
  formatShape,
  type Shape,
  sizeOf,
} from './shape.ts';

/** A layout with the axes that `axes` names, in that order. */
const pickAxes = (layout: Layout, axes: readonly number[]): Layout => ({
  ...layout,
  shape: axes.map((axis) => layout.shape[axis] as number),
  strides: axes.map((axis) => layout.strides[axis] as number),
});

/**
 * The axes in another order.
 *
 * @param axes which axis comes at each place, negative ones from the end; default: reversed
 * @throws RangeError unless every axis is there once
 * @example
 * transpose(makeLayout([2, 3, 4], 1), [0, 2, 1]).shape; // [2, 4, 3]
 */
export function transpose(layout: Layout, axes?: readonly number[]): Layout {
  const ndim = layout.shape.length;
  if (axes === undefined) return pickAxes(layout, [...layout.shape.keys()].reverse());
  const order = checkAxes(axes, ndim);
  if (order.length !== ndim)
    throw new RangeError(`axes ${formatShape(axes)} do not match an array with ${ndim} axes`);
  return pickAxes(layout, order);
}

/**
 * Without axes of size 1.
 *
 * @param axis those to go; default: all of size 1
 * @throws RangeError for one of another size
 */
export function squeeze(layout: Layout, axis?: number | readonly number[]): Layout {
  const { shape } = layout;
  const all = [...shape.keys()];
  if (axis === undefined)
    return pickAxes(
      layout,
      all.filter((each) => shape[each] !== 1),
    );
  const removed = checkAxes(typeof axis === 'number' ? [axis] : axis, shape.length);
  for (const each of removed) {
    if (shape[each] !== 1)
      throw new RangeError(
        `axis ${each} of shape ${formatShape(shape)} has size ${shape[each]}, not 1`,
      );
  }
  return pickAxes(
    layout,
    all.filter((each) => !removed.includes(each)),
  );
}

/** With an axis of size 1 more, at the place `axis` of the result. @throws RangeError beyond it */
export function expandDims(layout: Layout, axis: number): Layout {
  const at = checkAxis(axis, layout.shape.length + 1);
  return {
    ...layout,
    shape: checkShape(layout.shape.toSpliced(at, 0, 1)),
    strides: layout.strides.toSpliced(at, 0, 0),
  };
}

/**
 * The items repeated, without copying, until they have a shape: along axes of size 1 and along new
 * ones in front. The result overlaps itself: it is to be read only.
 *
 * @throws RangeError for a shape that the layout's does not fit
 * @example
 * broadcastTo(makeLayout([3, 1], 4), [2, 3, 4]).strides; // [0, 4, 0]
 * @see https://numpy.org/doc/stable/user/basics.broadcasting.html
 */
export function broadcastTo(layout: Layout, shape: Shape): Layout {
  const sizes = checkShape(shape);
  const added = sizes.length - layout.shape.length;
  const isCompatible = layout.shape.every((length, axis) => {
    const wanted = sizes[axis + added];
    return length === wanted || (length === 1 && wanted !== undefined);
  });
  if (added < 0 || !isCompatible)
    throw new RangeError(
      `cannot broadcast shape ${formatShape(layout.shape)} to ${formatShape(sizes)}`,
    );
  checkSafe(sizeOf(sizes) * layout.itemsize, `the byte length of shape ${formatShape(sizes)}`);
  const strides = sizes.map((_, axis) =>
    // A stride that no index uses is zero, as NumPy has it.
    (layout.shape[axis - added] ?? 1) === 1 ? 0 : (layout.strides[axis - added] as number),
  );
  return { ...layout, shape: sizes, strides };
}

/** The same items in another shape, where they lie as it wants them, and as items of another size. */

/** The result of a reshape. */
export interface Reshaped {
  /** The new shape, with the size that was left open. */
  readonly shape: Shape;
  /** The layout over the same memory; undefined where the items must be copied to get the shape. */
  readonly view: Layout | undefined;
}

/**
 * The same items in another shape, read and laid out in an order. It is a view exactly where NumPy
 * makes one; a copy is made by laying the items out in that order first.
 *
 * @param shape one size may be -1: what is left
 * @throws RangeError where the shape has another number of items
 * @example
 * reshape(makeLayout([2, 6], 4), [3, -1]).shape; // [3, 4]
 * @see https://numpy.org/doc/stable/reference/generated/numpy.reshape.html
 */
export function reshape(layout: Layout, shape: Shape, order: Order = 'C'): Reshaped {
  checkOrder(order);
  const sizes = resolveShape(layout, shape);
  const strides = reshapedStrides(layout, sizes, order);
  return { shape: sizes, view: strides && { ...layout, shape: sizes, strides } };
}

/**
 * The items in one dimension, in an order. As in NumPy it is a view of contiguous items only, so
 * that the result always is contiguous.
 */
export function ravel(layout: Layout, order: Order = 'C'): Reshaped {
  const shape = [sizeOf(layout.shape)];
  if (!isContiguous(layout, checkOrder(order))) return { shape, view: undefined };
  return { shape, view: { ...layout, shape, strides: [layout.itemsize] } };
}

/**
 * The same bytes as items of another size, which changes the size of the last axis.
 *
 * @throws RangeError where the last axis is not contiguous, or its bytes do not make whole items
 * @example
 * viewWithItemsize(makeLayout([2, 3], 8), 4).shape; // [2, 6]
 * @see https://numpy.org/doc/stable/reference/generated/numpy.ndarray.view.html
 */
export function viewWithItemsize(layout: Layout, itemsize: number): Layout {
  checkInteger(itemsize, 'itemsize', 1);
  if (itemsize === layout.itemsize) return layout;
  const { shape, strides } = layout;
  const length = shape.at(-1);
  const sizes = `of ${layout.itemsize} bytes as items of ${itemsize}`;
  if (length === undefined) throw new RangeError(`cannot view a single item ${sizes}`);
  if (length !== 1 && !shape.includes(0) && strides.at(-1) !== layout.itemsize)
    throw new RangeError(
      `cannot view items ${sizes}: the last axis is not contiguous, its stride is ${strides.at(-1)}`,
    );
  const isWhole =
    itemsize < layout.itemsize
      ? layout.itemsize % itemsize === 0
      : (length * layout.itemsize) % itemsize === 0;
  if (!isWhole) throw new RangeError(`cannot view the last axis, ${length} items ${sizes}`);
  return {
    ...layout,
    shape: checkShape([...shape.slice(0, -1), (length * layout.itemsize) / itemsize]),
    strides: [...strides.slice(0, -1), itemsize],
    itemsize,
  };
}

/** A shape whose size left open is filled in. */
function resolveShape(layout: Layout, shape: Shape): number[] {
  const sizes = checkShape(shape, 'shape', -1);
  const size = sizeOf(layout.shape);
  const open = sizes.indexOf(-1);
  if (open !== sizes.lastIndexOf(-1))
    throw new RangeError(`only one size of ${formatShape(sizes)} may be left open`);
  const known = sizeOf(sizes.filter((_, axis) => axis !== open));
  const isCompatible = open < 0 ? known === size : known > 0 && size % known === 0;
  if (!isCompatible)
    throw new RangeError(`cannot reshape ${size} elements into ${formatShape(shape)}`);
  if (open >= 0) sizes[open] = size / known;
  return sizes;
}

/** The strides of a shape over the items of a layout; undefined where there are none. */
function reshapedStrides(
  layout: Layout,
  shape: Shape,
  order: Order,
): readonly number[] | undefined {
  const isSame =
    shape.length === layout.shape.length &&
    shape.every((size, axis) => size === layout.shape[axis]);
  if (isSame) return layout.strides;
  if (isContiguous(layout, order)) return contiguousStrides(shape, layout.itemsize, order);
  if (order === 'C') return reshapedStridesInOrderC(layout, shape);
  // Axes in order F are the reversed axes in order C.
  const reversed = {
    ...layout,
    shape: layout.shape.toReversed(),
    strides: layout.strides.toReversed(),
  };
  return reshapedStridesInOrderC(reversed, shape.toReversed())?.reverse();
}

/** An axis of items that are there. */
interface Axis {
  readonly length: number;
  readonly stride: number;
}

/**
 * The strides of {@link reshapedStrides} in order C. Axes of old and new are taken in groups of as many
 * items: those of an old group must lie as one, and the new ones divide it.
 */
function reshapedStridesInOrderC(layout: Layout, shape: Shape): number[] | undefined {
  const old: Axis[] = layout.shape
    .map((length, axis) => ({ length, stride: layout.strides[axis] as number }))
    .filter(({ length }) => length !== 1);
  const strides: number[] = [];
  let from = 0;
  while (strides.length < shape.length && from < old.length) {
    const begin = strides.length;
    let end = begin + 1;
    let to = from + 1;
    let items = shape[begin] as number;
    let oldItems = (old[from] as Axis).length;
    while (items !== oldItems) {
      if (items < oldItems) items *= shape[end++] as number;
      else oldItems *= (old[to++] as Axis).length;
    }
    for (let axis = from; axis < to - 1; axis += 1) {
      const { length, stride } = old[axis + 1] as Axis;
      if ((old[axis] as Axis).stride !== length * stride) return undefined;
    }
    let stride = (old[to - 1] as Axis).stride;
    for (let axis = end - 1; axis >= begin; axis -= 1) {
      strides[axis] = checkSafe(stride, 'a stride');
      stride *= shape[axis] as number;
    }
    from = to;
  }
  // What is left has size 1: its stride is never used.
  while (strides.length < shape.length) strides.push(strides.at(-1) ?? layout.itemsize);
  return strides;
}
