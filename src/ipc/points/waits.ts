import type { Context } from '../../context.ts';
import { CudaError } from '../../errors.ts';
import type { Stream } from '../../stream.ts';
import type { PointPage } from './page.ts';
import { hasReached, type Point } from './point.ts';
import { waitForWord } from './words.ts';

/** Those that have queued any. */
const all = new Set<Waits>();

// The driver waits for its streams while a process ends: one that waits for another process, which
// may never get there, would hang it.
process.on('exit', () => {
  for (const waits of all) waits.giveUp();
});

/** The waits of this process's streams for the counters of another one. */
export class Waits {
  readonly #page: PointPage;
  /** How far each word is waited for, by slot. */
  readonly #awaited = new Map<number, Point>();
  #isRefused = false;

  constructor(page: PointPage) {
    this.#page = page;
  }

  isReached(points: readonly Point[]): boolean {
    return points.every((point) => this.#page.isReached(point));
  }

  /**
   * Has later work of a stream, by default of the context's legacy default stream, wait for points;
   * the other process must live. Answers false where the device cannot: then the host has to.
   */
  queue(points: readonly Point[], context: Context, stream?: Stream): boolean {
    if (this.#isRefused || !this.#page.isFixed) return false;
    try {
      for (const point of points)
        if (!this.#page.isReached(point)) this.#wait(point, context, stream);
      return true;
    } catch (error) {
      if (!(error instanceof CudaError) || error.sticky) throw error;
      this.#isRefused = true;
      return false;
    }
  }

  /**
   * Ends all waits, as the other process is gone: no stream stays blocked. Answers how many points
   * were not reached.
   */
  giveUp(): number {
    const missing = [...this.#awaited.values()].filter((point) => !this.#page.isReached(point));
    for (const point of missing) this.#page.raise(point);
    this.#awaited.clear();
    return missing.length;
  }

  /** The page is unmapped: nothing waits there any more. */
  end(): void {
    all.delete(this);
  }

  #wait(point: Point, context: Context, stream: Stream | undefined): void {
    const { slot, count } = point;
    const within = stream?.context ?? context;
    const address = this.#page.addressIn(within, slot);
    all.add(this);
    // Noted before: a wait that nobody knows of could block for ever.
    const known = this.#awaited.get(slot);
    if (known === undefined || hasReached(count, known.count)) this.#awaited.set(slot, point);
    if (stream) stream.enqueue((queue) => waitForWord(within, queue, address, count));
    else context.enqueue((queue) => waitForWord(within, queue, address, count));
  }
}
