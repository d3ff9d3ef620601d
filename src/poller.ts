/**
 * Waiting without blocking: the one poller behind every awaited wait. It asks at each turn of the
 * event loop for a short while, and around the expected end; else once a millisecond, however many
 * waits there are. What is only polled in the background is asked less often the longer it takes.
 */

import { checkInstance, checkOptions } from './validate.ts';

interface PendingPoll {
  poll(): boolean;
  resolve(): void;
  reject(error: unknown): void;
  /** Whether the process stays alive for it. */
  readonly keepAlive: boolean;
  /** How often it was asked. */
  attempts: number;
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
const EAGER_ATTEMPTS = 100;
const PERIOD_MS = 1;
/**
 * A poll in the background is late by at most a sixteenth of its wait, and by this: a process that
 * has nothing else to do must not wake up a thousand times a second for it.
 */
const MAX_PERIOD_MS = 40;
const MAX_RELATIVE_LATENESS = 1 / 16;

const pendingPolls = new Set<PendingPoll>();
/** The next turn: at the end of this turn of the loop, after a period, or whichever comes first. */
let immediate: NodeJS.Immediate | undefined;
let timer: NodeJS.Timeout | undefined;
/** After how long the timer fires. */
let period = PERIOD_MS;
let keepAliveCount = 0;
let lastSweepAt = 0;

const isEager = (wait: PendingPoll, now: number): boolean =>
  wait.attempts < EAGER_ATTEMPTS || (wait.eagerFrom <= now && now < wait.eagerUntil);

/**
 * Only in the background is there a timer beside the immediate: one that does not keep the process
 * alive does not wake a loop that sleeps, either; a timer does.
 */
function schedule(soon: boolean): void {
  const isBackground = keepAliveCount === 0;
  if (soon) {
    immediate = setImmediate(tick);
    if (isBackground) immediate.unref();
  }
  if (soon && !isBackground) return;
  period = isBackground ? backgroundPeriod() : PERIOD_MS;
  timer = setTimeout(tick, period);
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
  for (const { since } of pendingPolls) newest = Math.max(newest, since);
  const waited = performance.now() - newest;
  return Math.min(Math.max(waited * MAX_RELATIVE_LATENESS, PERIOD_MS), MAX_PERIOD_MS);
}

function tick(): void {
  unschedule();
  const now = performance.now();
  // New waits are asked at each turn; the old ones beside them once a period all the same.
  const isSweep = now - lastSweepAt >= PERIOD_MS;
  if (isSweep) lastSweepAt = now;
  let soon = false;
  for (const wait of pendingPolls) {
    if (isSweep || isEager(wait, now)) pollOnce(wait);
    soon ||= isEager(wait, now);
  }
  if (pendingPolls.size > 0 && !immediate && !timer) schedule(soon);
}

function pollOnce(wait: PendingPoll): void {
  wait.attempts += 1;
  try {
    if (!wait.poll()) return;
    remove(wait);
    wait.resolve();
  } catch (error) {
    remove(wait);
    wait.reject(error);
  }
}

function add(wait: PendingPoll): void {
  pendingPolls.add(wait);
  if (wait.keepAlive) keepAliveCount += 1;
  // A timer that is set already would let the new wait begin late.
  unschedule();
  schedule(true);
}

function remove(wait: PendingPoll): void {
  if (!pendingPolls.delete(wait) || !wait.keepAlive) return;
  keepAliveCount -= 1;
  if (keepAliveCount > 0 || !(immediate || timer)) return;
  // Who is left must neither keep the process alive nor sleep with the loop.
  unschedule();
  if (pendingPolls.size > 0) schedule(true);
}

/**
 * Resolves when `poll` answers true, and rejects with what it throws. The process stays alive
 * meanwhile. `poll` is asked once at once: what is done already costs no turn.
 *
 * @param expected where the end is known about: from its earliest to its latest it is asked at each
 * turn
 */
export function pollUntil(
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
    const wait: PendingPoll = {
      poll,
      resolve: settle<void>(resolve),
      reject: settle<unknown>(reject),
      keepAlive: true,
      attempts: 0,
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
  const noCallbacks = { resolve() {}, reject() {} };
  const since = performance.now();
  const wait = {
    poll,
    ...noCallbacks,
    keepAlive: false,
    attempts: 0,
    eagerFrom: 0,
    eagerUntil: 0,
    since,
  };
  add(wait);
  return () => {
    if (!pendingPolls.has(wait)) return;
    wait.since = performance.now();
    if (!timer || period === PERIOD_MS) return;
    unschedule();
    schedule(false);
  };
}

/** One turn of the event loop. */
export const nextLoopIteration = (): Promise<void> =>
  new Promise((resolve) => setImmediate(resolve));
