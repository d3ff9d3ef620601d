/** Plans a copy between two layouts with the fewest driver calls. */
import type { StridedAxis } from '../kernel/builtin-kernels.ts';
import { MAX_PITCH } from '../memory/pitched.ts';
import type { Layout } from './layout.ts';
import { formatShape } from './shape.ts';

/** The position of a box on one side of a copy, in bytes. */
export interface Pitches {
  /** The offset of the first box. */
  readonly byteOffset: number;
  /** The distance between rows: at least the width. */
  readonly rowPitch: number;
  /** The distance between slices: a multiple of the row pitch, at least as long as all rows. */
  readonly slicePitch: number;
}

/**
 * A strided copy: one box, at the places that {@link copyOffsets} gives.
 *
 * A `run` is a box of one row. A `box` has several rows, or slices of rows. In a `gather` each row
 * is a single item, as when a column is copied. Copying the whole range and picking the items on
 * the host may then be faster.
 */
export interface CopyPlan {
  readonly kind: 'run' | 'box' | 'gather';
  /** The length of a row in bytes. */
  readonly width: number;
  /** The number of rows in a slice. */
  readonly height: number;
  /** The number of slices. */
  readonly depth: number;
  readonly source: Pitches;
  readonly target: Pitches;
  /** All axes outside of a row, slowest first. */
  readonly axes: readonly StridedAxis[];
  /** Those of the axes that are not part of the box. */
  readonly repetitions: readonly StridedAxis[];
  /** The number of copies: how often the box is repeated. */
  readonly count: number;
}

/**
 * Plans a copy from one layout to another of the same shape; returns undefined for empty arrays.
 * The target must not overlap itself or the source.
 *
 * @throws RangeError for another shape or itemsize
 * @example
 * const corner = index(makeLayout([20, 30], 4), [{ stop: 10 }, { stop: 7 }]);
 * planCopy(corner, makeLayout([10, 7], 4)); // one box: width 28, height 10
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function planCopy(source: Layout, target: Layout): CopyPlan | undefined {
  checkSameShape(source, target);
  if (source.shape.includes(0)) return undefined;
  const { axes, from, to } = sortAxes(source, target);
  const merged = mergeAxes(axes);
  const { itemsize } = source;
  const last = merged.at(-1);
  const isRun = last?.source === itemsize && last.target === itemsize;
  const outer = isRun ? merged.slice(0, -1) : merged;
  const width = isRun ? last.length * itemsize : itemsize;
  const { rows, slices } = bestBox(outer, width);
  const height = rows?.length ?? 1;
  const pitches = (side: 'source' | 'target', byteOffset: number): Pitches => {
    const rowPitch = rows?.[side] ?? width;
    return { byteOffset, rowPitch, slicePitch: slices?.[side] ?? rowPitch * height };
  };
  const repetitions = outer.filter((axis) => axis !== rows && axis !== slices);
  return {
    kind: !isRun && outer.length > 0 ? 'gather' : rows ? 'box' : 'run',
    width,
    height,
    depth: slices?.length ?? 1,
    source: pitches('source', from),
    target: pitches('target', to),
    axes: outer,
    repetitions,
    count: repetitions.reduce((count, { length }) => count * length, 1),
  };
}

/** Yields the byte offsets of each copy of a plan. */
export function* copyOffsets(
  plan: CopyPlan,
): Generator<readonly [source: number, target: number], void> {
  const { repetitions } = plan;
  const index = repetitions.map(() => 0);
  let source = plan.source.byteOffset;
  let target = plan.target.byteOffset;
  for (let place = 0; place < plan.count; place += 1) {
    yield [source, target];
    // Like an odometer: the fastest axis advances; an axis that overflows restarts at 0.
    for (let axis = repetitions.length - 1; axis >= 0; axis -= 1) {
      const repetition = repetitions[axis] as StridedAxis;
      const next = (index[axis] as number) + 1;
      const steps = next < repetition.length ? 1 : 1 - next;
      index[axis] = steps === 1 ? next : 0;
      source += steps * repetition.source;
      target += steps * repetition.target;
      if (steps === 1) break;
    }
  }
}

function checkSameShape(source: Layout, target: Layout): void {
  if (
    source.shape.length !== target.shape.length ||
    !source.shape.every((length, axis) => length === target.shape[axis])
  )
    throw new RangeError(
      `cannot copy shape ${formatShape(source.shape)} to shape ${formatShape(target.shape)}`,
    );
  if (source.itemsize !== target.itemsize)
    throw new RangeError(
      `cannot copy items of ${source.itemsize} bytes to items of ${target.itemsize} bytes`,
    );
}

/** The axes longer than 1, slowest in the target first, with positive target strides. */
function sortAxes(
  source: Layout,
  target: Layout,
): { axes: StridedAxis[]; from: number; to: number } {
  let { byteOffset: from } = source;
  let { byteOffset: to } = target;
  const axes: StridedAxis[] = [];
  for (const [axis, length] of target.shape.entries()) {
    const strides = {
      source: source.strides[axis] as number,
      target: target.strides[axis] as number,
    };
    if (length === 1) continue;
    if (strides.target >= 0) {
      axes.push({ length, ...strides });
      continue;
    }
    // Start at the other end of the axis: the order of the items does not matter.
    from += (length - 1) * strides.source;
    to += (length - 1) * strides.target;
    axes.push({ length, source: 0 - strides.source, target: 0 - strides.target });
  }
  axes.sort((a, b) => b.target - a.target);
  return { axes, from, to };
}

/** Merges axes that are contiguous with each other on both sides. */
function mergeAxes(axes: readonly StridedAxis[]): readonly StridedAxis[] {
  const merged: StridedAxis[] = [];
  for (const axis of axes) {
    const outer = merged.at(-1);
    const { length, source, target } = axis;
    const isOne = outer?.source === source * length && outer.target === target * length;
    if (isOne) merged[merged.length - 1] = { ...axis, length: outer.length * length };
    else merged.push(axis);
  }
  return merged;
}

/** The axes that form the rows and the slices of a box. */
interface Box {
  readonly rows: StridedAxis | undefined;
  readonly slices: StridedAxis | undefined;
}

/** The box with which the fewest copies are needed. */
function bestBox(axes: readonly StridedAxis[], width: number): Box {
  let best: Box = { rows: undefined, slices: undefined };
  let mostCopies = 1;
  const consider = (rows: StridedAxis, slices?: StridedAxis): void => {
    const copies = rows.length * (slices?.length ?? 1);
    if (copies <= mostCopies) return;
    mostCopies = copies;
    best = { rows, slices };
  };
  for (const rows of axes) {
    if (!isRowPitch(rows.source, width) || !isRowPitch(rows.target, width)) continue;
    consider(rows);
    for (const slices of axes) {
      if (
        slices !== rows &&
        isSlicePitch(slices, rows, 'source') &&
        isSlicePitch(slices, rows, 'target')
      )
        consider(rows, slices);
    }
  }
  return best;
}

const isRowPitch = (pitch: number, width: number): boolean => pitch >= width && pitch <= MAX_PITCH;

const isSlicePitch = (slices: StridedAxis, rows: StridedAxis, side: 'source' | 'target'): boolean =>
  slices[side] % rows[side] === 0 && slices[side] >= rows[side] * rows.length;
