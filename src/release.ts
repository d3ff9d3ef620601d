/** Releases that may make the driver wait for the GPU, kept until the GPU is idle. */
import { releaseQuietly } from './resource.ts';
import { pollInBackground, type WaitOptions, waitUntil } from './wait.ts';

/**
 * cuMemFree and its like wait for the work of the whole context: behind a stream that is held up,
 * `close()` would stop the event loop. So a release runs at once while nothing is known to run, and
 * otherwise at the first moment when that is so.
 */
export class ReleaseQueue {
  readonly #isIdle: () => boolean;
  #pending: (() => void)[] = [];
  #polling = false;
  #deferrals = 0;

  /** @param isIdle whether all work that was queued in the context is done; must not throw */
  constructor(isIdle: () => boolean) {
    this.#isIdle = isIdle;
  }

  /** How many releases wait. */
  get size(): number {
    return this.#pending.length;
  }

  /** Runs `release` now if nothing can make it wait; else later, in the order of submission. */
  submit(release: () => void): void {
    if (this.#pending.length === 0 && this.#deferrals === 0 && this.#isIdle()) {
      release();
      return;
    }
    this.#pending.push(release);
    if (this.#polling) return;
    this.#polling = true;
    pollInBackground(() => this.collect());
  }

  /** Runs what waits, if the context is idle; answers whether nothing waits any more. */
  collect(): boolean {
    if (this.#deferrals > 0 || (this.#pending.length > 0 && !this.#isIdle())) return false;
    const ready = this.#pending;
    this.#pending = [];
    this.#polling = false;
    for (const release of ready) {
      releaseQuietly(release);
    }
    return this.#pending.length === 0;
  }

  /** Resolves when everything that was submitted has been released. */
  flush(options: WaitOptions = {}): Promise<void> {
    return waitUntil(() => this.collect(), options);
  }

  /** Releases nothing until the scope ends, and every other one that is open. */
  defer(): Disposable {
    this.#deferrals += 1;
    let isOpen = true;
    return {
      [Symbol.dispose]: () => {
        if (!isOpen) return;
        isOpen = false;
        this.#deferrals -= 1;
      },
    };
  }

  /** Forgets what waits, as a reset of the context has freed it. */
  clear(): void {
    this.#pending = [];
  }
}
