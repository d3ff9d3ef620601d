/**
 * A place in the work of one stream of another process. It is reached once the counter `index`
 * stands at `count` or beyond.
 */
export interface TimelinePoint {
  readonly index: number;
  /** Starts at 1. */
  readonly count: number;
}

/**
 * Returns the latest point of each counter. A stream that reached it has reached the earlier ones.
 */
export function latest(points: readonly TimelinePoint[]): TimelinePoint[] {
  if (points.length < 2) return [...points];
  const byIndex = new Map<number, TimelinePoint>();
  for (const point of points) {
    const known = byIndex.get(point.index);
    if (!known || known.count < point.count) byIndex.set(point.index, point);
  }
  return [...byIndex.values()];
}
