import type { DriverChoice } from '../driver.ts';
import { CopyingChild } from './copying.ts';
import { HandOverChild } from './hand-over.ts';

/** Longer than an answer takes: nobody sleeps in between. */
const BUSY_POLL_US = 200;

/**
 * The other processes of hand-overs: one receiver for all rows, which is warm after the first of
 * them (on an H200 it was as quick in each as one that knew no other, or quicker), and one receiver
 * of copies at a time.
 */
export class HandOverChildren {
  readonly #driver: DriverChoice;
  #receiver: HandOverChild | undefined;
  #polling: HandOverChild | undefined;
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

  /** One that looks at the connection before it sleeps, as this end of it does. */
  async pollingReceiver(): Promise<HandOverChild> {
    this.#polling ??= await HandOverChild.start(this.#driver, BUSY_POLL_US);
    return this.#polling;
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
    const polling = this.#polling;
    this.#receiver = undefined;
    this.#polling = undefined;
    this.#known.clear();
    await Promise.all([receiver?.end(), polling?.end(), this.#copying?.end()]);
  }
}
