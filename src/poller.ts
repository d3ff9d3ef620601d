/**
 * Waiting without blocking: the one poller behind every awaited wait. It asks at each turn of the
 * event loop for a short while, and around the expected end; else once a millisecond, however many
 * waits there are. What is only polled in the background is asked less often the longer it takes.
 */

import { checkInstance, checkOptions } from './validate.ts';

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
  /** In the background: since when it has been waiting for the same thing. */
  since: number;
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
/**
 * A poll in the background is late by at most a sixteenth of its wait, and by this: a process that
 * has nothing else to do must not wake up a thousand times a second for it.
 */
const LONGEST_PERIOD_MS = 40;
const LATENESS = 1 / 16;

const waits = new Set<Wait>();
/** The next turn: at the end of this turn of the loop, after a period, or whichever comes first. */
let immediate: NodeJS.Immediate | undefined;
let timer: NodeJS.Timeout | undefined;
/** After how long the timer fires. */
let period = PERIOD_MS;
let kept = 0;
let sweptAt = 0;

const isEager = (wait: Wait, now: number): boolean =>
  wait.turns < EAGER_TURNS || (wait.eagerFrom <= now && now < wait.eagerUntil);

/**
 * Only in the background is there a timer beside the immediate: one that does not keep the process
 * alive does not wake a loop that sleeps, either; a timer does.
 */
function schedule(soon: boolean): void {
  const isBackground = kept === 0;
  if (soon) {
    immediate = setImmediate(turn);
    if (isBackground) immediate.unref();
  }
  if (soon && !isBackground) return;
  period = isBackground ? backgroundPeriod() : PERIOD_MS;
  timer = setTimeout(turn, period);
  if (isBackground) timer.unref();
}

function unschedule(): void {
  clearImmediate(immediate);
  clearTimeout(timer);
  immediate = undefined;
  timer = undefined;
}

/** By the wait that is the newest. */
function backgroundPeriod(): number {
  let newest = 0;
  for (const { since } of waits) newest = Math.max(newest, since);
  const waited = performance.now() - newest;
  return Math.min(Math.max(waited * LATENESS, PERIOD_MS), LONGEST_PERIOD_MS);
}

function turn(): void {
  unschedule();
  const now = performance.now();
  // New waits are asked at each turn; the old ones beside them once a period all the same.
  const isSweep = now - sweptAt >= PERIOD_MS;
  if (isSweep) sweptAt = now;
  let soon = false;
  for (const wait of waits) {
    if (isSweep || isEager(wait, now)) ask(wait);
    soon ||= isEager(wait, now);
  }
  if (waits.size > 0 && !immediate && !timer) schedule(soon);
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
  unschedule();
  schedule(true);
}

function remove(wait: Wait): void {
  if (!waits.delete(wait) || !wait.keepAlive) return;
  kept -= 1;
  if (kept > 0 || !(immediate || timer)) return;
  // Who is left must neither keep the process alive nor sleep with the loop.
  unschedule();
  if (waits.size > 0) schedule(true);
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
      since: 0,
    };
    signal?.addEventListener('abort', abort, { once: true });
    add(wait);
  });
}

/**
 * Asks `poll` until it answers true, without keeping the process alive; a loop that sleeps is woken
 * for it. It must not throw.
 *
 * @returns to be called when there is something new to wait for: it is asked as often again as in
 * the beginning, which is less and less often otherwise
 */
export function pollInBackground(poll: () => boolean): () => void {
  const nobody = { resolve() {}, reject() {} };
  const since = performance.now();
  const wait = { poll, ...nobody, keepAlive: false, turns: 0, eagerFrom: 0, eagerUntil: 0, since };
  add(wait);
  return () => {
    if (!waits.has(wait)) return;
    wait.since = performance.now();
    if (!timer || period === PERIOD_MS) return;
    unschedule();
    schedule(false);
  };
}

/** One turn of the event loop. */
export const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
