/**
 * Waits without blocking: the only poller, behind every awaited wait. At the beginning, and around the
 * expected end, it polls in each iteration of the event loop. Then it sleeps, if something wakes the
 * wait up; otherwise it polls once a millisecond, for all waits together. Background polls become less
 * frequent the longer they take.
 */

import { rejectWithCallers, throwIfOver, type Wait } from './deadline.ts';
import { noteWait } from './diagnostics.ts';

/** When a wait is expected to end, in milliseconds from its beginning. */
export interface ExpectedEnd {
  readonly earliestMs: number;
  readonly latestMs: number;
}

/**
 * Arranges that `onWake` is called on the event loop once the end of a wait may have come. Returns a
 * function that cancels this, or undefined if nothing can call it now: then polling goes on, and asks
 * again. What it throws rejects the wait.
 */
export type ArmWakeUp = (onWake: () => void) => (() => void) | undefined;

/**
 * Resolves when `poll` returns true, and rejects with what it throws. The process stays alive meanwhile.
 * The first call of `poll` is immediate, so that finished work costs no iteration of the event loop,
 * unless {@link isTurnDue}.
 *
 * @param limits its signal, and until when it waits
 * @param expected when the end is expected: from the earliest to the latest time, each iteration of the
 * event loop polls
 * @param armWakeUp called when the polls of the beginning have not seen the end
 */
export function pollUntil(
  poll: () => boolean,
  limits: Wait = {},
  expected?: ExpectedEnd,
  armWakeUp?: ArmWakeUp,
): Promise<void> {
  const { signal } = limits;
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    if (!isTurnDue() && poll()) {
      resolve();
      return;
    }
    // The poll itself may have aborted the signal, which does not notify listeners added later.
    signal?.throwIfAborted();
    const note = limits.operation === undefined ? undefined : noteWait(limits.operation);
    const now = expected ? performance.now() : 0;
    let isAborted = false;
    const abort = (): void => {
      isAborted = true;
      note?.();
      remove(wait);
      reject(signal?.reason);
    };
    const settle =
      <T>(then: (value: T) => void) =>
      (value: T): void => {
        if (!isAborted) note?.();
        signal?.removeEventListener('abort', abort);
        then(value);
      };
    const wait: PendingPoll = {
      poll,
      limits,
      resolve: settle<void>(resolve),
      reject: settle<unknown>((error) => {
        // What the caller aborts with is the caller's.
        if (error === signal?.reason) reject(error);
        else if (!isAborted) rejectWithCallers(resolve, error);
      }),
      keepAlive: true,
      attempts: 0,
      // Two periods early: the last timer may be set just before, and may fire late.
      eagerFrom: expected ? now + expected.earliestMs - 2 * PERIOD_MS : 0,
      eagerUntil: expected ? now + expected.latestMs : 0,
      since: 0,
      armWakeUp,
      disarm: undefined,
      sleepsUntil: 0,
    };
    signal?.addEventListener('abort', abort, { once: true });
    add(wait);
  });
}

/**
 * Calls `poll` until it returns true. This does not keep the process alive, but wakes a sleeping event
 * loop. `poll` must not throw.
 *
 * @returns call it when there is something new to wait for: polling, which becomes less and less
 * frequent, then is as frequent again as at the beginning
 */
export function pollInBackground(poll: () => boolean): () => void {
  const noCallbacks = { resolve() {}, reject() {} };
  const since = performance.now();
  const wait: PendingPoll = {
    poll,
    limits: {},
    ...noCallbacks,
    keepAlive: false,
    attempts: 0,
    eagerFrom: 0,
    eagerUntil: 0,
    since,
    armWakeUp: undefined,
    disarm: undefined,
    sleepsUntil: 0,
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

let isPollingBackground = false;

/** Polls what is polled in the background, now: for a caller that keeps the event loop from turning. */
export function pollBackgroundNow(): void {
  // A background poll may itself block.
  if (isPollingBackground) return;
  isPollingBackground = true;
  try {
    for (const wait of pendingPolls) if (!wait.keepAlive) pollOnce(wait);
  } finally {
    isPollingBackground = false;
  }
}

/**
 * Whether the event loop has not turned for about a millisecond. What can settle at once asks this
 * first, and settles after a turn of the loop if so: a program that awaits in a loop what is always
 * ready would otherwise keep its timers, its sockets and the ends of its peers waiting for as long as
 * the loop runs. It stays true until the loop has turned.
 *
 * It reads the clock only at each eighth call, as a message is so short that the read is felt.
 */
export function isTurnDue(): boolean {
  if (uncheckedCalls < CALLS_PER_CLOCK_READ - 1) {
    uncheckedCalls += 1;
    return false;
  }
  const now = performance.now();
  if (now - lastTurnSeenAt >= MAX_TIME_WITHOUT_TURN_MS) {
    const turn = nodeTiming?.uvMetricsInfo?.loopCount ?? Number.NaN;
    // The next call must say the same, so it reads the clock, too.
    if (turn === lastTurn) return true;
    lastTurn = turn;
    lastTurnSeenAt = now;
  }
  uncheckedCalls = 0;
  return false;
}

/** Resolves in the next iteration of the event loop. */
export const nextLoopIteration = (): Promise<void> =>
  new Promise((resolve) => setImmediate(resolve));

const MAX_TIME_WITHOUT_TURN_MS = 1;
const CALLS_PER_CLOCK_READ = 8;
let uncheckedCalls = 0;
/** Other runtimes than Node lack it: there, nothing waits for a turn. */
const { nodeTiming } = performance as Partial<typeof performance>;
/** The number of a turn of the event loop, and when it was first seen. */
let lastTurn = Number.NaN;
let lastTurnSeenAt = Number.NEGATIVE_INFINITY;

// ---------------------------------------------------------------------------------------------
// The polls that are pending, and when they are polled next
// ---------------------------------------------------------------------------------------------

interface PendingPoll {
  poll(): boolean;
  readonly limits: Wait;
  resolve(): void;
  reject(error: unknown): void;
  /** Whether it keeps the process alive. */
  readonly keepAlive: boolean;
  /** How often it was polled. */
  attempts: number;
  /** The time in which it is polled in each iteration, however many attempts there were. */
  readonly eagerFrom: number;
  readonly eagerUntil: number;
  /** For a background poll: since when it has waited for the same thing. */
  since: number;
  readonly armWakeUp: ArmWakeUp | undefined;
  /** Cancels the wake-up; undefined while none is arranged. */
  disarm: (() => void) | undefined;
  /** While a wake-up is arranged: when it is polled all the same. */
  sleepsUntil: number;
}

/**
 * About 0.2 ms: most waits end within it, and a timer would add its millisecond. Then the wake-up takes
 * over: to arrange one costs several driver calls, and it comes later than a poll would by about 0.1 ms.
 */
const EAGER_ATTEMPTS = 100;
const PERIOD_MS = 1;
/** A wait with a wake-up is polled this often: after an error of its context the driver wakes nobody. */
const SWEEP_MS = 100;
/**
 * A background poll is late by at most a sixteenth of its wait, and by at most this: an idle process
 * must not wake up a thousand times a second for it.
 */
const MAX_PERIOD_MS = 40;
const MAX_RELATIVE_LATENESS = 1 / 16;

const pendingPolls = new Set<PendingPoll>();
/** They trigger the next tick: in this iteration of the loop, or after a period. */
let immediate: NodeJS.Immediate | undefined;
let timer: NodeJS.Timeout | undefined;
/** After how long the timer fires. */
let period = PERIOD_MS;
let keepAliveCount = 0;
let lastSweepAt = 0;

const isEager = (wait: PendingPoll, now: number): boolean =>
  wait.attempts < EAGER_ATTEMPTS || (wait.eagerFrom <= now && now < wait.eagerUntil);

/**
 * Schedules the next tick. Background polls need a timer besides the immediate: an unreferenced
 * immediate does not wake a sleeping loop, a timer does.
 */
function schedule(soon: boolean): void {
  const isBackground = keepAliveCount === 0;
  if (soon) {
    immediate = setImmediate(tick);
    if (isBackground) immediate.unref();
  }
  if (soon && !isBackground) return;
  period = isBackground ? backgroundPeriod() : foregroundPeriod();
  timer = setTimeout(tick, period);
  if (isBackground) timer.unref();
}

function unschedule(): void {
  clearImmediate(immediate);
  clearTimeout(timer);
  immediate = undefined;
  timer = undefined;
}

/** The period that suits the newest wait. */
function backgroundPeriod(): number {
  let newest = 0;
  for (const { since } of pendingPolls) newest = Math.max(newest, since);
  const waited = performance.now() - newest;
  return Math.min(Math.max(waited * MAX_RELATIVE_LATENESS, PERIOD_MS), MAX_PERIOD_MS);
}

/** The period while waits keep the process alive: longer only if a wake-up is arranged for each. */
function foregroundPeriod(): number {
  const now = performance.now();
  let until = now + SWEEP_MS;
  for (const wait of pendingPolls) {
    if (!wait.keepAlive) until = Math.min(until, now + backgroundPeriod());
    else if (!wait.disarm) return PERIOD_MS;
    else until = Math.min(until, wait.sleepsUntil, wait.limits.limit?.until ?? Infinity);
  }
  return Math.max(until - now, PERIOD_MS);
}

const isAsleep = (wait: PendingPoll, now: number): boolean =>
  wait.disarm !== undefined &&
  now < wait.sleepsUntil &&
  now < (wait.limits.limit?.until ?? Infinity);

function tick(): void {
  unschedule();
  const now = performance.now();
  // New waits are polled at each tick, older ones once a period.
  const isSweep = now - lastSweepAt >= PERIOD_MS;
  if (isSweep) lastSweepAt = now;
  let soon = false;
  for (const wait of pendingPolls) {
    if (!isAsleep(wait, now) && (isSweep || isEager(wait, now))) pollOnce(wait);
    soon ||= isEager(wait, now);
  }
  if (pendingPolls.size > 0 && !immediate && !timer) schedule(soon);
}

function pollOnce(wait: PendingPoll): void {
  wait.attempts += 1;
  try {
    if (!wait.poll()) {
      if (wait.limits.limit) throwIfOver(wait.limits);
      if (wait.armWakeUp && wait.attempts >= EAGER_ATTEMPTS) sleep(wait);
      return;
    }
    remove(wait);
    wait.resolve();
  } catch (error) {
    remove(wait);
    wait.reject(error);
  }
}

/** Lets a wait sleep until its wake-up, if one can be arranged. */
function sleep(wait: PendingPoll): void {
  // The poll may have aborted the wait.
  if (!pendingPolls.has(wait)) return;
  wait.disarm ??= wait.armWakeUp?.(() => wake(wait));
  wait.sleepsUntil = performance.now() + SWEEP_MS;
}

/** Polls a wait that was woken up. If its end has not come, it is polled as at the beginning. */
function wake(wait: PendingPoll): void {
  wait.disarm = undefined;
  wait.attempts = 0;
  pollOnce(wait);
  if (!pendingPolls.has(wait)) return;
  unschedule();
  schedule(true);
}

function add(wait: PendingPoll): void {
  pendingPolls.add(wait);
  if (wait.keepAlive) keepAliveCount += 1;
  // A timer that is already set would delay the new wait.
  unschedule();
  schedule(true);
}

function remove(wait: PendingPoll): void {
  if (!pendingPolls.delete(wait)) return;
  wait.disarm?.();
  wait.disarm = undefined;
  if (!wait.keepAlive) return;
  keepAliveCount -= 1;
  if (keepAliveCount > 0 || !(immediate || timer)) return;
  // The remaining waits must not keep the process alive, and must wake a sleeping loop.
  unschedule();
  if (pendingPolls.size > 0) schedule(true);
}
