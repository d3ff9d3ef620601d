import type { Layout } from './layout.ts';
import { sizeOf } from './shape.ts';

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
