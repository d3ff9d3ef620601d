import type { CUstream } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import type { Stream } from '../../stream.ts';
import { ResetWatch } from '../reset-watch.ts';
import type { PointPage } from './page.ts';
import { type Point, SLOT_COUNT } from './point.ts';

/** Whose work a slot counts: only that of one stream comes in order. */
export interface Slot {
  readonly slot: number;
  /** Of a stream: a reset ends its work. */
  readonly context: Context | undefined;
  /** How often it was counted on. */
  count: number;
  /** Whether its stream is there no more: then the slot goes to another when it is reached. */
  isOver(): boolean;
}

/** The slots of a page, one for each stream that tells how far it is. */
export class Slots {
  readonly #page: PointPage;
  /** Of cuffi's own streams: their handles are used again only when their work is done. */
  readonly #byHandle = new Map<Context, Map<CUstream, Slot>>();
  /** Of borrowed ones, which may be destroyed, and their handles used again, with work in them. */
  readonly #byStream = new WeakMap<Stream, Slot>();
  readonly #all: Slot[] = [];
  readonly #resets = new ResetWatch((context) => this.#wasReset(context));

  constructor(page: PointPage) {
    this.#page = page;
  }

  /** The page is there no more. */
  end(): void {
    this.#resets.end();
  }

  /** Whether a stream has not come to its last point yet. */
  get isPending(): boolean {
    return this.#all.some((slot) => !this.#page.isReached(slot));
  }

  /** The slot of a stream of cuffi's own, or of a default stream; undefined where all are taken. */
  ofHandle(context: Context, handle: CUstream): Slot | undefined {
    const ofContext = this.#byHandle.get(context) ?? new Map<CUstream, Slot>();
    this.#byHandle.set(context, ofContext);
    const known = ofContext.get(handle);
    if (known) return known;
    const { streams } = context.activity;
    const slot = this.take(() => {
      if (streams.has(handle)) return false;
      ofContext.delete(handle);
      return true;
    }, context);
    if (slot) ofContext.set(handle, slot);
    return slot;
  }

  /** The slot of a borrowed stream, as long as its object is there. */
  ofBorrowed(stream: Stream): Slot | undefined {
    const known = this.#byStream.get(stream);
    if (known) return known;
    const weak = new WeakRef(stream);
    const slot = this.take(() => weak.deref() === undefined, stream.context);
    if (slot) this.#byStream.set(stream, slot);
    return slot;
  }

  /** A slot for one who counts in order; undefined where all are taken. */
  take(isOver: () => boolean, context?: Context): Slot | undefined {
    if (context) this.#resets.add(context);
    if (this.#all.length < SLOT_COUNT) {
      const slot = { slot: this.#all.length, context, count: 0, isOver };
      this.#all.push(slot);
      return slot;
    }
    const at = this.#all.findIndex((slot) => this.#page.isReached(slot) && slot.isOver());
    const old = this.#all[at];
    if (!old) return undefined;
    // It goes on counting where it stands: who waits for less has it reached.
    const slot = { slot: old.slot, context, count: old.count, isOver };
    this.#all[at] = slot;
    return slot;
  }

  /** What was to write the counters runs no more: the other end must not wait for it for ever. */
  #wasReset(context: Context): void {
    for (const slot of this.#all) if (slot.context === context) this.#page.raise(slot);
  }

  /** The next place in the work of a slot's stream. */
  static next(slot: Slot): Point {
    slot.count += 1;
    return { slot: slot.slot, count: slot.count };
  }
}
