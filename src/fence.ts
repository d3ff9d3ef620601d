import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUevent } from '../ffi/types.ts';

/** Something that is known to have work or not. */
interface Worker {
  isIdle(): boolean;
}

/** The work that was queued up to one moment: an event behind that of each stream. */
export class Fence {
  #events: readonly CUevent[];
  #others: readonly Worker[];
  readonly #giveBack: (event: CUevent) => void;

  /**
   * @param others workers that no event could be recorded for: waited for until they are idle
   * @param giveBack takes the events back, each once
   */
  constructor(
    events: readonly CUevent[],
    others: readonly Worker[],
    giveBack: (event: CUevent) => void,
  ) {
    this.#events = events;
    this.#others = others;
    this.#giveBack = giveBack;
  }

  /** Whether that work is done; what is broken or gone has none. */
  isDone(): boolean {
    this.#events = this.#events.filter((event) => {
      if (cu.cuEventQuery(event) === CUresult.CUDA_ERROR_NOT_READY) return true;
      this.#giveBack(event);
      return false;
    });
    this.#others = this.#others.filter((other) => !other.isIdle());
    return this.#events.length === 0 && this.#others.length === 0;
  }

  /** Gives its events back: nobody asks any more. */
  drop(): void {
    for (const event of this.#events) this.#giveBack(event);
    this.#events = [];
    this.#others = [];
  }
}
