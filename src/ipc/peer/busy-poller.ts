/**
 * Looking instead of sleeping: the one place where the thread does it, for all connections, so that
 * none that spins is deaf to what comes through another.
 */

import { yieldCore } from '../../../ffi/libc.ts';

/** What a look has found. */
export type Look =
  /** Those who wait still wait. */
  | 'nothing'
  /** One who waited goes on; another waits still. */
  | 'served'
  /** Nobody waits any more, or what they wait for is not to be had by looking. */
  | 'over';

/** Where someone waits. */
export interface Polled {
  /** How long it is looked at, in microseconds. */
  readonly forUs: number;
  /** Looks once. It must not throw. */
  look(): Look;
}

interface Poll {
  readonly polled: Polled;
  /** From its first look on; 0 before. */
  until: number;
}

/** Looking at the clock, and yielding, each cost about as much as a look. */
const LOOKS_BETWEEN = 4;

const polls: Poll[] = [];
let isScheduled = false;

/**
 * Looks from the next turn of the event loop on: whatever is ready to run, and may send what is
 * answered, runs before. Asked anew, the time begins anew.
 */
export function busyPoll(polled: Polled): void {
  const poll = polls.find((each) => each.polled === polled);
  if (poll) poll.until = 0;
  else polls.push({ polled, until: 0 });
  schedule();
}

function schedule(): void {
  if (isScheduled || polls.length === 0) return;
  isScheduled = true;
  setImmediate(spin);
}

function spin(): void {
  isScheduled = false;
  let now = performance.now();
  for (const poll of polls) poll.until ||= now + poll.polled.forUs / 1000;
  // Nothing is allocated from here on: it may go round a million times.
  for (let looks = 1; polls.length > 0; looks += 1) {
    for (let at = polls.length - 1; at >= 0; at -= 1) {
      const poll = polls[at] as Poll;
      const found = poll.polled.look();
      if (found === 'nothing' && now < poll.until) continue;
      if (found === 'served') poll.until = 0;
      else polls.splice(at, 1);
      if (found === 'nothing') continue;
      // What was waited for goes on first, and the loop has its turn.
      schedule();
      return;
    }
    if (looks % LOOKS_BETWEEN > 0) continue;
    // Where there are fewer cores than processes that look, whoever is to answer may need this one.
    yieldCore();
    now = performance.now();
  }
}
