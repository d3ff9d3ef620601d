import { cu } from '../ffi/driver.ts';
import { CUresult } from '../ffi/results.ts';
import type { CUevent } from '../ffi/types.ts';

/** The work of one context up to a moment: one event behind each stream's work. */
export interface FencePart {
  readonly events: readonly CUevent[];
  /** Called instead, if events could not be recorded. */
  readonly isDone?: (() => boolean) | undefined;
  /** Whether the context was reset since: its work has ended, and its events are destroyed. */
  isReset(): boolean;
  /** Ends the use of an event; called once for each. */
  releaseEvent(event: CUevent): void;
}

/** The work that was queued up to one moment. */
export class Fence {
  #parts: FencePart[];

  constructor(parts: readonly FencePart[]) {
    this.#parts = [...parts];
  }

  /** Whether that work is done; a lost or reset context has no work. */
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

  /** Releases its events, as nobody needs the fence. */
  dispose(): void {
    for (const part of this.#parts) {
      if (part.isReset()) continue;
      for (const event of part.events) part.releaseEvent(event);
    }
    this.#parts = [];
  }
}
