import type { Wait } from '../../deadline.ts';
import { pollUntil } from '../../poller.ts';
import { busyPoll, type Pollable } from '../wire/busy-poll.ts';

/** The waits at one end of a channel, which the other end wakes up. */
export class Sleepers {
  readonly #setAsleep: (isAsleep: boolean) => void;
  readonly #wakers = new Set<() => void>();
  /** For how many microseconds a wait polls before it sleeps. */
  busyPollUs = 0;

  /** @param setAsleep tells the other end whether to wake this one up */
  constructor(setAsleep: (isAsleep: boolean) => void) {
    this.#setAsleep = setAsleep;
  }

  /** Resolves when `poll` returns true, and rejects with what it throws. */
  wait(poll: () => boolean, limits: Wait): Promise<void> {
    let isOver = false;
    const isDone = (): boolean => {
      isOver ||= poll();
      return isOver;
    };
    const { busyPollUs } = this;
    const waited = pollUntil(isDone, limits, undefined, (onWake) =>
      this.#sleep(isDone, onWake),
    ).catch((error: unknown) => {
      // What a poll has taken must not be lost to a signal that aborts right after it.
      if (!isOver) throw error;
    });
    if (busyPollUs === 0 || isOver) return waited;
    return new Promise((resolve, reject) => {
      waited.then(resolve, reject);
      const pollable: Pollable = {
        durationUs: busyPollUs,
        poll() {
          try {
            if (limits.signal?.aborted) return 'over';
            if (!isDone()) return 'nothing';
            resolve();
          } catch {
            // The other poll throws it again.
          }
          return 'over';
        },
      };
      busyPoll(pollable);
    });
  }

  /** Polls all waits again. */
  wake(): void {
    for (const onWake of [...this.#wakers]) {
      this.#remove(onWake);
      onWake();
    }
  }

  #sleep(isDone: () => boolean, onWake: () => void): (() => void) | undefined {
    if (this.#wakers.size === 0) this.#setAsleep(true);
    this.#wakers.add(onWake);
    // A wake-up sent before the other end saw the flag is lost: look again.
    try {
      if (!isDone()) return () => this.#remove(onWake);
    } catch {
      // The next poll throws it again.
    }
    this.#remove(onWake);
    return undefined;
  }

  #remove(onWake: () => void): void {
    if (this.#wakers.delete(onWake) && this.#wakers.size === 0) this.#setAsleep(false);
  }
}
