import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUevent } from '../ffi/types.ts';

/** The work of one context up to a moment: an event behind that of each stream. */
export interface FencePart {
  readonly events: readonly CUevent[];
  /** Asked in place of events where none was to be had. */
  readonly isDone?: (() => boolean) | undefined;
  /** Whether the context was reset since: its work is over, and its events are gone. */
  isReset(): boolean;
  /** Takes an event back, each once. */
  releaseEvent(event: CUevent): void;
}

/** The work that was queued up to one moment. */
export class Fence {
  #parts: FencePart[];

  constructor(parts: readonly FencePart[]) {
    this.#parts = [...parts];
  }

  /** Whether that work is done; what is broken or gone has none. */
  isDone(): boolean {
    this.#parts = this.#parts.flatMap((part) => {
      if (part.isReset()) return [];
      const events = part.events.filter((event) => {
        if (cu.cuEventQuery(event) === CUresult.CUDA_ERROR_NOT_READY) return true;
        part.releaseEvent(event);
        return false;
      });
      return events.length > 0 || part.isDone?.() === false ? [{ ...part, events }] : [];
    });
    return this.#parts.length === 0;
  }

  /** Gives its events back: nobody asks any more. */
  dispose(): void {
    for (const part of this.#parts) {
      if (part.isReset()) continue;
      for (const event of part.events) part.releaseEvent(event);
    }
    this.#parts = [];
  }
}
