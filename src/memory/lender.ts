/** Things that are lent to one asker at a time, in the order of asking. */
export class Lender<T> {
  readonly #free: T[];
  readonly #waiting: ((item: T) => void)[] = [];

  constructor(items: readonly T[] = []) {
    this.#free = [...items];
  }

  /** Whether the next asker must wait. */
  get isEmpty(): boolean {
    return this.#free.length === 0;
  }

  /** Resolves with a thing that nobody else has, until it is given back. */
  take(): Promise<T> {
    const item = this.#free.shift();
    if (item !== undefined) return Promise.resolve(item);
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Gives a thing back, or a new one in; whoever has waited longest gets it. */
  give(item: T): void {
    const next = this.#waiting.shift();
    if (next) next(item);
    else this.#free.push(item);
  }
}
