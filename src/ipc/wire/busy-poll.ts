import { yieldCore } from '../../../ffi/linux/libc.ts';
import type { FramedSocket } from './framed-socket.ts';

/** A connection that is polled. */
interface PollTarget {
  /** Whether someone waits for what has not come. */
  isAwaited(): boolean;
  /** Tells the other end what it is to be told: what is waited for may depend on it. */
  sendControl(): void;
}

/** Looking at the socket of a connection, on request, before the thread sleeps. */
export class BusyPoller implements Pollable {
  readonly #socket: FramedSocket;
  readonly #target: PollTarget;
  /** As {@link Pollable}; 0 for not at all. */
  durationUs = 0;

  constructor(wire: FramedSocket, target: PollTarget) {
    this.#socket = wire;
    this.#target = target;
  }

  /** Someone has begun to wait, perhaps. */
  begin(): void {
    if (this.durationUs > 0 && this.#target.isAwaited()) busyPoll(this);
  }

  /** As {@link Pollable}. */
  poll(): PollResult {
    this.#target.sendControl();
    // What waits to go out needs the event loop, and perhaps the answer needs that.
    if (!this.#socket.sendQueue.isEmpty || !this.#target.isAwaited()) return 'over';
    const read = this.#socket.poll();
    if (read === 'nothing') return 'nothing';
    if (read === 'over' || !this.#target.isAwaited()) return 'over';
    return read === 'awaited' ? 'served' : 'nothing';
  }
}

/**
 * Looking instead of sleeping: the one place where the thread does it, for all connections, so that
 * none that spins is deaf to what comes through another.
 */

/** What a look has found. */
export type PollResult =
  /** Those who wait still wait. */
  | 'nothing'
  /** One who waited goes on; another waits still. */
  | 'served'
  /** Nobody waits any more, or what they wait for is not to be had by looking. */
  | 'over';

/** Where someone waits. */
export interface Pollable {
  /** How long it is looked at, in microseconds. */
  readonly durationUs: number;
  /** Looks once. It must not throw. */
  poll(): PollResult;
}

interface ActivePoll {
  readonly pollable: Pollable;
  /** From its first look on; 0 before. */
  until: number;
}

/** Looking at the clock, and yielding, each cost about as much as a look. */
const POLLS_PER_YIELD = 4;

const polls: ActivePoll[] = [];
let isScheduled = false;

/**
 * Looks from the next turn of the event loop on: whatever is ready to run, and may send what is
 * answered, runs before. Asked anew, the time begins anew.
 */
export function busyPoll(pollable: Pollable): void {
  const poll = polls.find((each) => each.pollable === pollable);
  if (poll) poll.until = 0;
  else polls.push({ pollable, until: 0 });
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
  for (const poll of polls) poll.until ||= now + poll.pollable.durationUs / 1000;
  // Nothing is allocated from here on: it may go round a million times.
  for (let looks = 1; polls.length > 0; looks += 1) {
    for (let at = polls.length - 1; at >= 0; at -= 1) {
      const poll = polls[at] as ActivePoll;
      const found = poll.pollable.poll();
      if (found === 'nothing' && now < poll.until) continue;
      if (found === 'served') poll.until = 0;
      else polls.splice(at, 1);
      if (found === 'nothing') continue;
      // What was waited for goes on first, and the loop has its turn.
      schedule();
      return;
    }
    if (looks % POLLS_PER_YIELD > 0) continue;
    // Where there are fewer cores than processes that look, whoever is to answer may need this one.
    yieldCore();
    now = performance.now();
  }
}
