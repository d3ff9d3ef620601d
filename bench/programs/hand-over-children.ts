import type { DriverChoice } from '../driver.ts';
import { CopyingChild } from './copying.ts';
import { HandOverChild } from './hand-over.ts';

/**
 * The other processes of hand-overs: one receiver for all rows, which is warm after the first of
 * them (on an H200 it was as quick in each as one that knew no other, or quicker), and one receiver
 * of copies at a time.
 */
export class HandOverChildren {
  readonly #driver: DriverChoice;
  #receiver: HandOverChild | undefined;
  #copying: CopyingChild | undefined;
  readonly #known = new Set<object>();

  constructor(driver: DriverChoice) {
    this.#driver = driver;
  }

  /** The receiver, started when it is first asked for. */
  async receiver(): Promise<HandOverChild> {
    this.#receiver ??= await HandOverChild.start(this.#driver);
    return this.#receiver;
  }

  /** Whether the receiver meets a way for the first time; from then on it does not. */
  isNew(way: object): boolean {
    const isNew = !this.#known.has(way);
    this.#known.add(way);
    return isNew;
  }

  /** The receiver of copies, until somebody ends it: what it copies is in memory of its size. */
  async copyingReceiver(byteLength: number): Promise<CopyingChild> {
    const { isEnded = true } = this.#copying ?? {};
    if (!isEnded && this.#copying?.byteLength === byteLength) return this.#copying;
    await this.#copying?.end();
    this.#copying = await CopyingChild.start(this.#driver, byteLength);
    return this.#copying;
  }

  /** Ends those that are there; the next ones asked for are new. */
  async end(): Promise<void> {
    const receiver = this.#receiver;
    this.#receiver = undefined;
    this.#known.clear();
    await Promise.all([receiver?.end(), this.#copying?.end()]);
  }
}
