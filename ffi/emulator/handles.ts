/** Numbers for contexts, streams and events: never given out twice, never a default stream's. */

const FIRST = 0x1000;
const STEP = 0x10;

/** What a handle stands for, by its number. */
export class Handles {
  #next = FIRST;

  make(): number {
    const handle = this.#next;
    this.#next += STEP;
    return handle;
  }
}
