/** Views whose items stay what they are: other axes, or the same items more than once. */
import type { Layout } from './layout.ts';
import { checkAxes, checkAxis, checkShape, type Shape, safe, shown, sizeOf } from './shape.ts';

/** A layout with the axes that `axes` names, in that order. */
const pick = (layout: Layout, axes: readonly number[]): Layout => ({
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
  if (axes === undefined) return pick(layout, [...layout.shape.keys()].reverse());
  const order = checkAxes(axes, ndim);
  if (order.length !== ndim)
    throw new RangeError(`axes ${shown(axes)} do not match an array with ${ndim} axes`);
  return pick(layout, order);
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
    return pick(
      layout,
      all.filter((each) => shape[each] !== 1),
    );
  const gone = checkAxes(typeof axis === 'number' ? [axis] : axis, shape.length);
  for (const each of gone) {
    if (shape[each] !== 1)
      throw new RangeError(`axis ${each} of shape ${shown(shape)} has size ${shape[each]}, not 1`);
  }
  return pick(
    layout,
    all.filter((each) => !gone.includes(each)),
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
  const isFitting = layout.shape.every((length, axis) => {
    const wanted = sizes[axis + added];
    return length === wanted || (length === 1 && wanted !== undefined);
  });
  if (added < 0 || !isFitting)
    throw new RangeError(`cannot broadcast shape ${shown(layout.shape)} to ${shown(sizes)}`);
  safe(sizeOf(sizes) * layout.itemsize, `the byte length of shape ${shown(sizes)}`);
  const strides = sizes.map((_, axis) =>
    // A stride that no index uses is zero, as NumPy has it.
    (layout.shape[axis - added] ?? 1) === 1 ? 0 : (layout.strides[axis - added] as number),
  );
  return { ...layout, shape: sizes, strides };
}
