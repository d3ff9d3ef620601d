/** Of runs that go on side by side one measures at a time, in turns. */
export class Turns {
  #last: Promise<void> = Promise.resolve();

  /** Resolves when all that were asked for before have ended, with the way to end this one. */
  async take(): Promise<() => void> {
    const before = this.#last;
    let end = (): void => {};
    this.#last = new Promise((resolve) => {
      end = resolve;
    });
    await before;
    return end;
  }
}

/** One of those who take turns. Its first turn is asked for when it is made. */
export class Turn {
  readonly #turns: Turns;
  #taken: Promise<() => void>;
  #isFirst = true;

  constructor(turns: Turns) {
    this.#turns = turns;
    this.#taken = turns.take();
  }

  /** Ends its turn; resolves when it has the next one. */
  async next(): Promise<void> {
    if (!this.#isFirst) {
      this.over();
      this.#taken = this.#turns.take();
    }
    this.#isFirst = false;
    await this.#taken;
  }

  /** Ends its turn, also one that it has not had yet. */
  over(): void {
    void this.#taken.then((end) => end());
  }
}
