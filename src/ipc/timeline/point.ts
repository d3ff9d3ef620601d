/**
 * A place in the work of a stream of another process: reached when the word of its slot stands at
 * `count`, or beyond it.
 */
export interface TimelinePoint {
  readonly slot: number;
  /** From 1; the word holds it modulo 2^64, and what is compared are the low 32 bits. */
  readonly count: number;
}

/** How many words a page has: one for each stream that tells how far it is. */
export const COUNTER_COUNT = 512;

/** Of each slot the furthest point: who is there has been at the others. */
export function latest(points: readonly TimelinePoint[]): TimelinePoint[] {
  if (points.length < 2) return [...points];
  const bySlot = new Map<number, TimelinePoint>();
  for (const point of points) {
    const known = bySlot.get(point.slot);
    if (!known || known.count < point.count) bySlot.set(point.slot, point);
  }
  return [...bySlot.values()];
}

/** Whether a counter that stands at `word` has reached `count`: cyclic, as the driver compares. */
export const hasReached = (word: number, count: number): boolean => ((word - count) | 0) >= 0;
