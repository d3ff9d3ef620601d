/** Shapes and axes: the sizes of an array along its dimensions, checked. */
import { checkInteger } from '../validate.ts';

/** The sizes of an array along its axes; none for a single item. */
export type Shape = readonly number[];

/** As in NumPy and PyTorch. */
export const MAX_NDIM = 64;

/** A product or sum that addresses are made of. @throws RangeError beyond the safe integers */
export function checkSafe(value: number, name: string): number {
  if (!Number.isSafeInteger(value))
    throw new RangeError(`${name} is too large: ${value} is no safe integer`);
  // 0 times a negative number is -0, which is another value to a test of equality.
  return value + 0;
}

/** How many items there are. */
export const sizeOf = (shape: Shape): number => shape.reduce((size, length) => size * length, 1);

/** A shape in words, e.g. `[2, 3]`. */
export const formatShape = (shape: Shape): string => `[${shape.join(', ')}]`;

/**
 * A shape as an array of its own.
 *
 * @param min the least size of an axis: -1 where one may be left open
 * @throws TypeError unless an array of numbers; RangeError for other sizes, more than 64 axes, or
 * more items than can be counted
 */
export function checkShape(shape: unknown, name = 'shape', min = 0): number[] {
  if (!Array.isArray(shape)) throw new TypeError(`${name} must be an array of integers`);
  const { length: ndim } = shape;
  if (ndim > MAX_NDIM) throw new RangeError(`${name} has ${ndim} axes: at most ${MAX_NDIM}`);
  const sizes = checkIntegers(shape, name, min, ndim);
  // Without its empty axes, so that the strides of an array without items are safe too.
  sizes.reduce(
    (size, length) => (length < 1 ? size : checkSafe(size * length, `${name}'s size`)),
    1,
  );
  return sizes;
}

/** Integers as an array of their own. @throws TypeError or RangeError that names the wrong one */
export function checkIntegers(
  values: readonly unknown[],
  name: string,
  min: number,
  length: number = values.length,
): number[] {
  const checked = new Array<number>(length);
  for (let i = 0; i < length; i += 1) {
    const value = values[i];
    // Its name costs more than the check, and only an error needs it.
    const isValid = Number.isSafeInteger(value) && (value as number) >= min;
    checked[i] = isValid ? (value as number) : checkInteger(value, `${name}[${i}]`, min);
  }
  return checked;
}

/** An axis from 0 on. @param axis counts from the end where negative. @throws RangeError beyond */
export function checkAxis(axis: number, ndim: number): number {
  checkInteger(axis, 'axis', Number.MIN_SAFE_INTEGER);
  if (axis < -ndim || axis >= ndim)
    throw new RangeError(`axis ${axis} is out of bounds for an array with ${ndim} axes`);
  return axis < 0 ? axis + ndim : axis;
}

/** Axes from 0 on, each once. @throws RangeError for one that comes twice */
export function checkAxes(axes: readonly number[], ndim: number): number[] {
  if (!Array.isArray(axes)) throw new TypeError('axes must be an array of integers');
  const checked = Array.from(axes, (axis: number) => checkAxis(axis, ndim));
  const repeated = checked.find((axis, at) => checked.indexOf(axis) !== at);
  if (repeated !== undefined) throw new RangeError(`axis ${repeated} is given twice`);
  return checked;
}
