/** Layouts of views: transposed, reshaped, broadcast, or with another item size. */

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

/** A layout with only the given axes, in that order. */
const pickAxes = (layout: Layout, axes: readonly number[]): Layout => ({
  ...layout,
  shape: axes.map((axis) => layout.shape[axis] as number),
  strides: axes.map((axis) => layout.strides[axis] as number),
});

/**
 * Permutes the axes.
 *
 * @param axes the axis for each position, negative ones from the end; default: reversed
 * @throws RangeError unless every axis occurs once
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
 * Removes axes of size 1.
 *
 * @param axis the axes to remove; default: all of size 1
 * @throws RangeError for an axis of another size
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

/** Inserts an axis of size 1 at position `axis` of the result. @throws RangeError if out of bounds */
export function expandDims(layout: Layout, axis: number): Layout {
  const at = checkAxis(axis, layout.shape.length + 1);
  return {
    ...layout,
    shape: checkShape(layout.shape.toSpliced(at, 0, 1)),
    strides: layout.strides.toSpliced(at, 0, 0),
  };
}

/**
 * Repeats the items to a shape without copying, along axes of size 1 and along new axes in front. The
 * result overlaps itself, so it must be read only.
 *
 * @throws RangeError if the layout cannot be broadcast to the shape
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
    // An unused stride is 0, as in NumPy.
    (layout.shape[axis - added] ?? 1) === 1 ? 0 : (layout.strides[axis - added] as number),
  );
  return { ...layout, shape: sizes, strides };
}

// ---- Reshape, and items of another size ----

/** The result of a reshape. */
export interface Reshaped {
  /** The new shape, with the open size filled in. */
  readonly shape: Shape;
  /** The layout over the same memory; undefined if the items must be copied. */
  readonly view: Layout | undefined;
}

/**
 * Gives the items another shape, reading them in an order. The result is a view exactly where NumPy
 * makes one. Otherwise the caller must copy the items to that order first.
 *
 * @param shape one size may be -1 and is then computed
 * @throws RangeError if the shape has another number of items
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
 * Flattens the items to one axis, in an order. As in NumPy only contiguous items give a view, so the
 * result is always contiguous.
 */
export function ravel(layout: Layout, order: Order = 'C'): Reshaped {
  const shape = [sizeOf(layout.shape)];
  if (!isContiguous(layout, checkOrder(order))) return { shape, view: undefined };
  return { shape, view: { ...layout, shape, strides: [layout.itemsize] } };
}

/**
 * Views the same bytes as items of another size, which changes the size of the last axis.
 *
 * @throws RangeError if the last axis is not contiguous, or its length is not a multiple of itemsize
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

/** Returns the shape with its open size filled in. */
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

/** The strides of a shape over the items of a layout; undefined if the items must be copied. */
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
  // Order F is order C with the axes reversed.
  const reversed = {
    ...layout,
    shape: layout.shape.toReversed(),
    strides: layout.strides.toReversed(),
  };
  return reshapedStridesInOrderC(reversed, shape.toReversed())?.reverse();
}

/** An axis of the existing items. */
interface Axis {
  readonly length: number;
  readonly stride: number;
}

/**
 * The strides of {@link reshapedStrides} in order C. Groups old and new axes with the same number of
 * items: the old axes of a group must be contiguous, and the new ones divide them.
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
  // The remaining axes have size 1, so their strides are never used.
  while (strides.length < shape.length) strides.push(strides.at(-1) ?? layout.itemsize);
  return strides;
}
