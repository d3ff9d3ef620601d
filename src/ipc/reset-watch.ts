import type { Context } from '../context.ts';

/** Watches a set of contexts for resets until it is stopped. */
export class ResetWatch {
  readonly #onReset: (context: Context) => void;
  readonly #listeners = new Map<Context, () => void>();

  /** @param onReset called when work queued in a context no longer runs */
  constructor(onReset: (context: Context) => void) {
    this.#onReset = onReset;
  }

  /** The number of watched contexts. */
  get size(): number {
    return this.#listeners.size;
  }

  add(context: Context): void {
    if (this.#listeners.has(context)) return;
    const listener = (): void => this.#onReset(context);
    this.#listeners.set(context, listener);
    context.onReset.add(listener);
  }

  remove(context: Context): void {
    const listener = this.#listeners.get(context);
    if (listener) context.onReset.delete(listener);
    this.#listeners.delete(context);
  }

  stop(): void {
    for (const [context, listener] of this.#listeners) context.onReset.delete(listener);
    this.#listeners.clear();
  }
}
