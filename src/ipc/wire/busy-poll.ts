/**
 * Polling instead of sleeping. The thread polls in this one place for all connections, so that
 * polling one does not starve the others.
 */

import { yieldCore } from '../../../ffi/linux/libc.ts';
import { checkInteger } from '../../validate.ts';
import type { FramedSocket } from './framed-socket.ts';

/** The longest that anything polls before it sleeps: a second. */
const MAX_BUSY_POLL_US = 1_000_000;

/** Returns a checked duration. @throws TypeError, RangeError */
export const checkBusyPollUs = (busyPollUs: unknown): number =>
  checkInteger(busyPollUs, 'busyPollUs', 0, MAX_BUSY_POLL_US);

/** What one poll found. */
export type PollResult =
  /** Nothing: those that wait still wait. */
  | 'nothing'
  /** One wait was served; another still waits. */
  | 'served'
  /** Nobody waits, or only the event loop can serve the wait. */
  | 'over';

/** Something that can be polled while callers wait for it. */
export interface Pollable {
  /** For how many microseconds to poll. */
  readonly durationUs: number;
  /** Polls once. Must not throw. */
  poll(): PollResult;
}

/** The connection that a poller reads for. */
interface PollTarget {
  /** Whether a caller waits for a message that has not arrived. */
  isAwaited(): boolean;
  /** Sends pending control messages, because the awaited message may depend on them. */
  sendControl(): void;
}

/** Polls the socket of a connection, if asked to, before the thread sleeps. */
export class BusyPoller implements Pollable {
  readonly #socket: FramedSocket;
  readonly #target: PollTarget;
  /** As {@link Pollable}; 0 turns polling off. */
  durationUs = 0;

  constructor(socket: FramedSocket, target: PollTarget) {
    this.#socket = socket;
    this.#target = target;
  }

  /** Starts polling if a caller waits. Call it whenever a wait may have begun. */
  begin(): void {
    if (this.durationUs > 0 && this.#target.isAwaited()) busyPoll(this);
  }

  /** As {@link Pollable}. */
  poll(): PollResult {
    this.#target.sendControl();
    // Unsent messages need the event loop, and the awaited reply may depend on them.
    if (!this.#socket.sendQueue.isEmpty || !this.#target.isAwaited()) return 'over';
    const read = this.#socket.poll();
    if (read === 'nothing') return 'nothing';
    if (read === 'over' || !this.#target.isAwaited()) return 'over';
    return read === 'awaited' ? 'served' : 'nothing';
  }
}

// ---- The loop that polls for all connections ----

interface ActivePoll {
  readonly pollable: Pollable;
  /** When polling ends. 0 before the first poll. */
  until: number;
}

/** Reading the clock, and yielding, each cost about as much as a poll. */
const POLLS_PER_YIELD = 4;

const polls: ActivePoll[] = [];
let isScheduled = false;

/**
 * Polls from the next turn of the event loop on. Code that is ready to run goes first, as it may
 * send the request that is then answered. A second call restarts the time.
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
  // Allocates nothing from here on, as the loop may run a million times.
  for (let count = 1; polls.length > 0; count += 1) {
    for (let at = polls.length - 1; at >= 0; at -= 1) {
      const poll = polls[at] as ActivePoll;
      const found = poll.pollable.poll();
      if (found === 'nothing' && now < poll.until) continue;
      if (found === 'served') poll.until = 0;
      else polls.splice(at, 1);
      if (found === 'nothing') continue;
      // The served caller, and the event loop, run first.
      schedule();
      return;
    }
    if (count % POLLS_PER_YIELD > 0) continue;
    // If more processes poll than there are cores, the one that is to reply may need this core.
    yieldCore();
    now = performance.now();
  }
}
