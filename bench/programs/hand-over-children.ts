import type { DriverChoice } from '../driver.ts';
import { CopyingChild } from './copying.ts';
import { HandOverChild } from './hand-over.ts';

/** The other processes of hand-overs: one receiver at a time, and one receiver of copies. */
export class HandOverChildren {
  readonly #driver: DriverChoice;
  #last: { readonly row: string; readonly child: HandOverChild } | undefined;
  #copying: CopyingChild | undefined;

  constructor(driver: DriverChoice) {
    this.#driver = driver;
  }

  /**
   * The receiver of a row. Its sizes have the same one, which is then warm, and no two rows do, as
   * what V8 learned of one would slow down the other.
   */
  async of(row: string): Promise<HandOverChild> {
    if (this.#last?.row === row) return this.#last.child;
    await this.end();
    const child = await HandOverChild.start(this.#driver);
    this.#last = { row, child };
    return child;
  }

  /** The receiver of copies, until somebody ends it: what it copies is in memory of its size. */
  async copying(byteLength: number): Promise<CopyingChild> {
    const { isEnded = true } = this.#copying ?? {};
    if (!isEnded && this.#copying?.byteLength === byteLength) return this.#copying;
    await this.#copying?.end();
    this.#copying = await CopyingChild.start(this.#driver, byteLength);
    return this.#copying;
  }

  /** Ends those that are there; the next ones asked for are new. */
  async end(): Promise<void> {
    const { child } = this.#last ?? {};
    this.#last = undefined;
    await Promise.all([child?.end(), this.#copying?.end()]);
  }
}
