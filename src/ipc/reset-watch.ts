import type { Context } from '../context.ts';

/** Tells of the resets of those contexts in which something is, until it is ended. */
export class ResetWatch {
  readonly #onReset: (context: Context) => void;
  readonly #listeners = new Map<Context, () => void>();

  /** @param onReset called when nothing that was queued in a context runs any more */
  constructor(onReset: (context: Context) => void) {
    this.#onReset = onReset;
  }

  /** The contexts that it tells of. */
  get size(): number {
    return this.#listeners.size;
  }

  add(context: Context): void {
    if (this.#listeners.has(context)) return;
    const listener = (): void => this.#onReset(context);
    this.#listeners.set(context, listener);
    context.onReset.add(listener);
  }

  stop(): void {
    for (const [context, listener] of this.#listeners) context.onReset.delete(listener);
    this.#listeners.clear();
  }
}
