import type { Context } from '../context.ts';

/** Tells of the resets of those contexts in which something is, until it is ended. */
export class ResetWatch {
  readonly #told: (context: Context) => void;
  readonly #tellers = new Map<Context, () => void>();

  /** @param told called when nothing that was queued in a context runs any more */
  constructor(told: (context: Context) => void) {
    this.#told = told;
  }

  /** The contexts that it tells of. */
  get size(): number {
    return this.#tellers.size;
  }

  add(context: Context): void {
    if (this.#tellers.has(context)) return;
    const tell = (): void => this.#told(context);
    this.#tellers.set(context, tell);
    context.afterReset.add(tell);
  }

  end(): void {
    for (const [context, tell] of this.#tellers) context.afterReset.delete(tell);
    this.#tellers.clear();
  }
}
