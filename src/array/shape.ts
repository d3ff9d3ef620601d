/** Checks and formats shapes and axes. */
import { checkInteger } from '../validate.ts';

/** The sizes of an array along its axes; none for a single item. */
export type Shape = readonly number[];

/** The most axes of an array, as in NumPy and PyTorch. */
export const MAX_NDIM = 64;

/** Checks a product or sum for addresses. @throws RangeError beyond the safe integers */
export function checkSafe(value: number, name: string): number {
  if (!Number.isSafeInteger(value))
    throw new RangeError(`${name} is too large: ${value} is not a safe integer`);
  // Turns -0, from 0 times a negative number, into 0.
  return value + 0;
}

/** The number of items. */
export const sizeOf = (shape: Shape): number => shape.reduce((size, length) => size * length, 1);

/** Formats a shape, e.g. `[2, 3]`. */
export const formatShape = (shape: Shape): string => `[${shape.join(', ')}]`;

/**
 * Returns a checked copy of a shape.
 *
 * @param min the smallest allowed size of an axis: -1 if a size may be left open
 * @throws TypeError if not an array of numbers; RangeError for an invalid size, more than 64 axes, or
 * more than 2^53 - 1 items
 */
export function checkShape(shape: unknown, name = 'shape', min = 0): number[] {
  if (!Array.isArray(shape)) throw new TypeError(`${name} must be an array of integers`);
  const { length: ndim } = shape;
  if (ndim > MAX_NDIM) throw new RangeError(`${name} has ${ndim} axes: at most ${MAX_NDIM}`);
  const sizes = checkIntegers(shape, name, min, ndim);
  // Skips empty axes, so that the strides of an empty array are safe too.
  sizes.reduce(
    (size, length) => (length < 1 ? size : checkSafe(size * length, `${name}'s size`)),
    1,
  );
  return sizes;
}

/** Returns a checked copy of integers. @throws TypeError or RangeError with the invalid one's index */
export function checkIntegers(
  values: readonly unknown[],
  name: string,
  min: number,
  length: number = values.length,
): number[] {
  const checked = new Array<number>(length);
  for (let i = 0; i < length; i += 1) {
    const value = values[i];
    // Building the name costs more than the check, so only errors do it.
    const isValid = Number.isSafeInteger(value) && (value as number) >= min;
    checked[i] = isValid ? (value as number) : checkInteger(value, `${name}[${i}]`, min);
  }
  return checked;
}

/** Normalizes an axis. @param axis negative: from the end. @throws RangeError if out of bounds */
export function checkAxis(axis: number, ndim: number): number {
  checkInteger(axis, 'axis', Number.MIN_SAFE_INTEGER);
  if (axis < -ndim || axis >= ndim)
    throw new RangeError(`axis ${axis} is out of bounds for an array with ${ndim} axes`);
  return axis < 0 ? axis + ndim : axis;
}

/** Normalizes a list of axes. @throws RangeError for an axis that occurs twice */
export function checkAxes(axes: readonly number[], ndim: number): number[] {
  if (!Array.isArray(axes)) throw new TypeError('axes must be an array of integers');
  const checked = Array.from(axes, (axis: number) => checkAxis(axis, ndim));
  const repeated = checked.find((axis, at) => checked.indexOf(axis) !== at);
  if (repeated !== undefined) throw new RangeError(`axis ${repeated} is given twice`);
  return checked;
}
