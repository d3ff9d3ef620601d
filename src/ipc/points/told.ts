import type { Context } from '../../context.ts';
import type { Fence } from '../../fence.ts';
import { pollInBackground } from '../../wait.ts';
import type { PointPage } from './page.ts';
import type { Point } from './point.ts';
import { type Slot, Slots } from './slots.ts';

/** Work whose end this process's CPU tells the other one, as its streams cannot: in order. */
export class Told {
  readonly #page: PointPage;
  /** Taken at once, so that there is one. */
  readonly #slot: Slot;
  #waiting: { readonly fence: Fence; readonly point: Point }[] = [];
  /** Says to the poll in the background, if there is one, that there is more to be told. */
  #hurry: (() => void) | undefined;
  #done: (() => void) | undefined;

  constructor(page: PointPage, slots: Slots) {
    this.#page = page;
    this.#slot = slots.take(() => false) as Slot;
  }

  /** A point behind all work of a context, and of others on its memory, that is known now. */
  behind(context: Context): Point {
    const point = Slots.next(this.#slot);
    this.#waiting.push({ fence: context.activity.fence(), point });
    if (this.#hurry) this.#hurry();
    else this.#hurry = pollInBackground(() => this.#poll());
    return point;
  }

  /** Calls `done` when nothing is left to be told: the other process may wait for it. */
  whenDone(done: () => void): void {
    if (this.#hurry) this.#done = done;
    else done();
  }

  #poll(): boolean {
    for (let first = this.#waiting[0]; first?.fence.isDone(); first = this.#waiting[0]) {
      this.#page.raise(first.point);
      this.#waiting.shift();
      // The other process waits for each: the next is not asked for less often for this one.
      this.#hurry?.();
    }
    if (this.#waiting.length > 0) return false;
    this.#hurry = undefined;
    this.#done?.();
    return true;
  }
}
