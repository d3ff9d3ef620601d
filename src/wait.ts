/**
 * Waiting without blocking: the one poller behind every awaited wait. It asks at each turn of the
 * event loop for a short while, and around the expected end; else once a millisecond, however many
 * waits there are.
 */

import { checkInstance, checkOptions } from './arguments.ts';

interface Wait {
  poll(): boolean;
  resolve(): void;
  reject(error: unknown): void;
  /** Whether the process stays alive for it. */
  readonly keepAlive: boolean;
  /** How often it was asked. */
  turns: number;
  /** From when until when it is asked at each turn, however often that was. */
  readonly eagerFrom: number;
  readonly eagerUntil: number;
}

/** When a wait is expected to end, from its beginning. */
export interface ExpectedEnd {
  readonly earliestMs: number;
  readonly latestMs: number;
}

/** How a wait may be given up. */
export interface WaitOptions {
  /** Rejects the wait with the signal's reason; what was waited for goes on. */
  readonly signal?: AbortSignal;
}

/** The options of a wait that `signal` may give up. @throws TypeError unless a signal or undefined */
export function checkSignal(signal: unknown): WaitOptions {
  return signal === undefined ? {} : { signal: checkInstance(signal, AbortSignal, 'signal') };
}

/** About 0.2 ms of turns: most waits end within, and a timer's millisecond would hide it. */
const EAGER_TURNS = 100;
const PERIOD_MS = 1;

const waits = new Set<Wait>();
/** The next turn, and how to take it back. */
let scheduled: { readonly handle: NodeJS.Immediate | NodeJS.Timeout; cancel(): void } | undefined;
let kept = 0;
let sweptAt = 0;

const isEager = (wait: Wait, now: number): boolean =>
  wait.turns < EAGER_TURNS || (wait.eagerFrom <= now && now < wait.eagerUntil);

function schedule(soon: boolean): void {
  if (soon) {
    const handle = setImmediate(turn);
    scheduled = { handle, cancel: () => clearImmediate(handle) };
  } else {
    const handle = setTimeout(turn, PERIOD_MS);
    scheduled = { handle, cancel: () => clearTimeout(handle) };
  }
  if (kept === 0) scheduled.handle.unref();
}

function turn(): void {
  scheduled = undefined;
  const now = performance.now();
  // New waits are asked at each turn; the old ones beside them once a period all the same.
  const isSweep = now - sweptAt >= PERIOD_MS;
  if (isSweep) sweptAt = now;
  let soon = false;
  for (const wait of waits) {
    if (isSweep || isEager(wait, now)) ask(wait);
    soon ||= isEager(wait, now);
  }
  if (waits.size > 0 && !scheduled) schedule(soon);
}

function ask(wait: Wait): void {
  wait.turns += 1;
  try {
    if (!wait.poll()) return;
    remove(wait);
    wait.resolve();
  } catch (error) {
    remove(wait);
    wait.reject(error);
  }
}

function add(wait: Wait): void {
  waits.add(wait);
  if (wait.keepAlive) kept += 1;
  // A timer that is set already would let the new wait begin late.
  scheduled?.cancel();
  schedule(true);
}

function remove(wait: Wait): void {
  if (!waits.delete(wait) || !wait.keepAlive) return;
  kept -= 1;
  if (kept === 0) scheduled?.handle.unref();
}

/**
 * Resolves when `poll` answers true, and rejects with what it throws. The process stays alive
 * meanwhile. `poll` is asked once at once: what is done already costs no turn.
 *
 * @param expected where the end is known about: from its earliest to its latest it is asked at each
 * turn
 */
export function waitUntil(
  poll: () => boolean,
  options: WaitOptions = {},
  expected?: ExpectedEnd,
): Promise<void> {
  const { signal } = checkSignal(checkOptions(options, ['signal'], 'waiting').signal);
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    if (poll()) {
      resolve();
      return;
    }
    // The poll itself may have aborted it: a listener that is added now would never hear of it.
    signal?.throwIfAborted();
    const now = expected ? performance.now() : 0;
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
      turns: 0,
      // The last timer before may be set a moment too early for this, and end late itself.
      eagerFrom: expected ? now + expected.earliestMs - 2 * PERIOD_MS : 0,
      eagerUntil: expected ? now + expected.latestMs : 0,
    };
    signal?.addEventListener('abort', abort, { once: true });
    add(wait);
  });
}

/** Asks `poll` until it answers true, without keeping the process alive. It must not throw. */
export function pollInBackground(poll: () => boolean): void {
  const nobody = { resolve() {}, reject() {} };
  add({ poll, ...nobody, keepAlive: false, turns: 0, eagerFrom: 0, eagerUntil: 0 });
}

/** One turn of the event loop. */
export const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
