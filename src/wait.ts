/**
 * Waiting without blocking: the one poller behind every awaited wait. It asks at each turn of the
 * event loop for a short while, then once a millisecond, however many waits there are.
 */

import { checkOptions } from './arguments.ts';

interface Wait {
  poll(): boolean;
  resolve(): void;
  reject(error: unknown): void;
  /** Whether the process stays alive for it. */
  readonly keepAlive: boolean;
}

/** How a wait may be given up. */
export interface WaitOptions {
  /** Rejects the wait with the signal's reason; what was waited for goes on. */
  readonly signal?: AbortSignal;
}

/** About 0.2 ms of turns: most waits end within, and a timer's millisecond would hide it. */
const EAGER_TURNS = 100;
const PERIOD_MS = 1;

const waits = new Set<Wait>();
let turns = 0;
let scheduled: { ref(): unknown; unref(): unknown } | undefined;
let kept = 0;

function schedule(): void {
  scheduled = turns < EAGER_TURNS ? setImmediate(turn) : setTimeout(turn, PERIOD_MS);
  if (kept === 0) scheduled.unref();
}

function turn(): void {
  scheduled = undefined;
  turns += 1;
  for (const wait of waits) {
    try {
      if (!wait.poll()) continue;
      wait.resolve();
    } catch (error) {
      wait.reject(error);
    }
    remove(wait);
    turns = 0;
  }
  if (waits.size > 0 && !scheduled) schedule();
}

function add(wait: Wait): void {
  waits.add(wait);
  if (wait.keepAlive) kept += 1;
  turns = 0;
  if (!scheduled) schedule();
  else if (kept > 0) scheduled.ref();
}

function remove(wait: Wait): void {
  if (!waits.delete(wait) || !wait.keepAlive) return;
  kept -= 1;
  if (kept === 0) scheduled?.unref();
}

/**
 * Resolves when `poll` answers true, and rejects with what it throws. The process stays alive
 * meanwhile. `poll` is asked once at once: what is done already costs no turn.
 */
export function waitUntil(poll: () => boolean, options: WaitOptions = {}): Promise<void> {
  const { signal } = checkOptions(options, ['signal'], 'waiting');
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    if (poll()) {
      resolve();
      return;
    }
    const abort = (): void => {
      remove(wait);
      reject(signal?.reason);
    };
    const settle =
      <T>(then: (value: T) => void) =>
      (value: T): void => {
        signal?.removeEventListener('abort', abort);
        then(value);
      };
    const wait: Wait = {
      poll,
      resolve: settle<void>(resolve),
      reject: settle<unknown>(reject),
      keepAlive: true,
    };
    signal?.addEventListener('abort', abort, { once: true });
    add(wait);
  });
}

/** Asks `poll` until it answers true, without keeping the process alive. It must not throw. */
export function pollInBackground(poll: () => boolean): void {
  add({ poll, resolve() {}, reject() {}, keepAlive: false });
}

/** One turn of the event loop. */
export const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
