import type { DriverChoice } from '../driver.ts';
import { type ChildOptions, HandOverChild } from './hand-over.ts';

/**
 * The other processes of hand-overs, one at a time: the sizes of a row have the same one, which is
 * then warm, and no two rows do, as what V8 learned of one would slow down the other.
 */
export class HandOverChildren {
  readonly #driver: DriverChoice;
  #last: { readonly row: string; readonly child: HandOverChild } | undefined;

  constructor(driver: DriverChoice) {
    this.#driver = driver;
  }

  /** The process of a row, and whether it has just been started. */
  async of(
    row: string,
    options?: ChildOptions,
  ): Promise<{ readonly child: HandOverChild; readonly isNew: boolean }> {
    if (this.#last?.row === row) return { child: this.#last.child, isNew: false };
    await this.end();
    const child = await HandOverChild.start(this.#driver, options);
    this.#last = { row, child };
    return { child, isNew: true };
  }

  /** Ends the one that is there; the next one asked for is new. */
  async end(): Promise<void> {
    const { child } = this.#last ?? {};
    this.#last = undefined;
    await child?.end();
  }
}
