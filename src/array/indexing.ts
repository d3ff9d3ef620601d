/** Basic indexing as in NumPy: integers, slices and `...`; the result is always a view. */
import { checkInteger, checkOptions } from '../validate.ts';
import type { Layout } from './layout.ts';
import { checkAxis, checkSafe, formatShape, type Shape } from './shape.ts';

/** A slice of an axis, as Python's `start:stop:step`; by default the whole axis. */
export interface Slice {
  /** The first index; negative: from the end. */
  readonly start?: number | undefined;
  /** The index after the last; negative: from the end. */
  readonly stop?: number | undefined;
  /** The distance between indices; negative: backwards. Default 1. */
  readonly step?: number | undefined;
}

/** Selects from an axis: an index, a slice, or (`'...'`) all axes that no other selector covers. */
export type Selector = number | Slice | '...';

/** A slice with the indices start + i * step, for i from 0 to count - 1. */
interface ResolvedSlice {
  readonly start: number;
  readonly step: number;
  readonly count: number;
}

const { MIN_SAFE_INTEGER } = Number;

/** The indices of a slice along an axis, clipped as in Python. */
function resolveSlice(slice: Slice, length: number): ResolvedSlice {
  if (typeof slice !== 'object' || slice === null)
    throw new TypeError(
      `a selector must be an integer, { start, stop, step } or '...', not ${String(slice)}`,
    );
  const { start, stop, step = 1 } = checkOptions(slice, ['start', 'stop', 'step'], 'slice');
  checkInteger(step, 'step', MIN_SAFE_INTEGER);
  if (step === 0) throw new RangeError('step must not be 0');
  // The bounds of `start` and `stop`, inclusive.
  const [lowest, highest] = step > 0 ? [0, length] : [-1, length - 1];
  const clip = (place: number | undefined, name: string, fallback: number): number => {
    if (place === undefined) return fallback;
    checkInteger(place, name, MIN_SAFE_INTEGER);
    return Math.min(Math.max(place < 0 ? place + length : place, lowest), highest);
  };
  const [first, end] = step > 0 ? [lowest, highest] : [highest, lowest];
  const from = clip(start, 'start', first);
  const count = Math.ceil((clip(stop, 'stop', end) - from) / step);
  // An empty slice starts at 0, so that its offset stays within the memory.
  return count > 0 ? { start: from, step, count } : { start: 0, step: 1, count: 0 };
}

function checkIndex(index: number, axis: number, length: number): number {
  checkInteger(index, 'index', MIN_SAFE_INTEGER);
  if (index < -length || index >= length)
    throw new RangeError(`index ${index} is out of bounds for axis ${axis} with size ${length}`);
  return index < 0 ? index + length : index;
}

/**
 * The layout of the items that selectors take, one selector for each axis from the first on. Axes
 * without a selector stay whole.
 *
 * @throws RangeError for more selectors than axes, an index beyond its axis, or a step of 0
 * @example
 * index(layout, [0, '...', { step: -1 }]); // Python's a[0, ..., ::-1]
 * @see https://numpy.org/doc/stable/user/basics.indexing.html
 */
export function indexLayout(layout: Layout, selectors: readonly Selector[]): Layout {
  const { shape, strides } = layout;
  const selected: { shape: number[]; strides: number[] } = { shape: [], strides: [] };
  let { byteOffset } = layout;
  for (const [axis, selector] of expandSelectors(selectors, shape).entries()) {
    const length = shape[axis] as number;
    const stride = strides[axis] as number;
    if (typeof selector === 'number') {
      // In an empty array the offset could leave the memory.
      const place = checkIndex(selector, axis, length);
      if (!shape.includes(0)) byteOffset += place * stride;
      continue;
    }
    const { start, step, count } = resolveSlice(selector, length);
    if (!shape.includes(0)) byteOffset += start * stride;
    selected.shape.push(count);
    selected.strides.push(checkSafe(stride * step, 'a stride'));
  }
  return { ...layout, ...selected, byteOffset };
}

/** Two numbers may be meant as the range between them, as in JavaScript's `slice`. */
const rangeHint = ([start, stop, ...others]: readonly Selector[]): string =>
  typeof start === 'number' && typeof stop === 'number' && others.length === 0
    ? `. A range is { start: ${start}, stop: ${stop} }`
    : '';

/** Expands the selectors to one for each axis. */
function expandSelectors(given: readonly Selector[], shape: readonly number[]): (number | Slice)[] {
  if (!Array.isArray(given)) throw new TypeError('an index must be an array of selectors');
  const selectors: readonly Selector[] = [...given];
  const isEllipsis = (selector: Selector): selector is '...' => selector === '...';
  const ellipsisCount = selectors.filter(isEllipsis).length;
  if (ellipsisCount > 1) throw new RangeError("an index may have only one '...'");
  const missing = shape.length - (selectors.length - ellipsisCount);
  if (missing < 0)
    throw new RangeError(
      `too many indices for shape ${formatShape(shape)}: ${selectors.length - ellipsisCount}, not ` +
        `${shape.length}${rangeHint(selectors)}`,
    );
  const fullSlices: Slice[] = Array.from({ length: missing }, () => ({}));
  return ellipsisCount === 0
    ? [...(selectors as (number | Slice)[]), ...fullSlices]
    : selectors.flatMap((selector: Selector) => (isEllipsis(selector) ? fullSlices : [selector]));
}

/**
 * How an axis is split: into a number of equal parts; at the given indices, negative ones from the
 * end; or into parts of `size` items, the last of which may be shorter.
 */
export type Sections = number | readonly number[] | { readonly size: number };

/**
 * Splits an array along an axis.
 *
 * @throws RangeError if the axis cannot be split into equal parts
 * @example
 * split(makeLayout([6], 4), 3); // 3 layouts of 2 items
 * split(makeLayout([6], 4), [1, 3]); // 1, 2 and 3 items
 * split(makeLayout([6], 4), { size: 4 }); // 4 and 2 items
 */
export function splitLayout(layout: Layout, sections: Sections, axis = 0): readonly Layout[] {
  const { shape } = layout;
  const splitAxis = checkAxis(axis, shape.length);
  const length = shape[splitAxis] as number;
  const before = Array.from({ length: splitAxis }, (): Slice => ({}));
  const indices = splitIndices(sections, length, shape);
  return Array.from({ length: indices.length + 1 }, (_, at) =>
    indexLayout(layout, [...before, { start: indices[at - 1] ?? 0, stop: indices[at] }]),
  );
}

function splitIndices(sections: Sections, length: number, shape: Shape): readonly number[] {
  if (typeof sections === 'number') return equalSplitIndices(sections, length, shape);
  if (Array.isArray(sections)) return [...sections];
  if (typeof sections !== 'object' || sections === null)
    throw new TypeError('sections must be an integer, an array of them, or { size }');
  const { size } = checkOptions(sections as { size: number }, ['size'], 'sections');
  checkInteger(size, 'size', 1);
  const parts = Math.ceil(length / (size as number));
  return Array.from({ length: Math.max(parts - 1, 0) }, (_, at) => (at + 1) * (size as number));
}

function equalSplitIndices(
  sections: number,
  length: number,
  shape: readonly number[],
): readonly number[] {
  checkInteger(sections, 'sections', 1);
  if (length % sections !== 0)
    throw new RangeError(
      `cannot split ${length} of shape ${formatShape(shape)} into ${sections} parts of the same size`,
    );
  const size = length / sections;
  return Array.from({ length: sections - 1 }, (_, at) => (at + 1) * size);
}
