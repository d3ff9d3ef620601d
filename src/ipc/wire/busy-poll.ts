import { yieldCore } from '../../../ffi/linux/libc.ts';
import type { Wire } from './framed-socket.ts';

/** A connection that is polled. */
interface Waiting {
  /** Whether someone waits for what has not come. */
  isAwaited(): boolean;
  /** Tells the other end what it is to be told: what is waited for may depend on it. */
  tellNews(): void;
}

/** Looking at the socket of a connection, on request, before the thread sleeps. */
export class Polling implements Polled {
  readonly #wire: Wire;
  readonly #waiting: Waiting;
  /** As {@link Polled}; 0 for not at all. */
  forUs = 0;

  constructor(wire: Wire, waiting: Waiting) {
    this.#wire = wire;
    this.#waiting = waiting;
  }

  /** Someone has begun to wait, perhaps. */
  begin(): void {
    if (this.forUs > 0 && this.#waiting.isAwaited()) busyPoll(this);
  }

  /** As {@link Polled}. */
  look(): Look {
    this.#waiting.tellNews();
    // What waits to go out needs the event loop, and perhaps the answer needs that.
    if (!this.#wire.outbox.isEmpty || !this.#waiting.isAwaited()) return 'over';
    const read = this.#wire.look();
    if (read === 'nothing') return 'nothing';
    if (read === 'over' || !this.#waiting.isAwaited()) return 'over';
    return read === 'awaited' ? 'served' : 'nothing';
  }
}

/**
 * Looking instead of sleeping: the one place where the thread does it, for all connections, so that
 * none that spins is deaf to what comes through another.
 */

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
