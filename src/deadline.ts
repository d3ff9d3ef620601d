/** Waits that end early: by a signal, or after a time. */

import { setMaxListeners } from 'node:events';
import { areWaitsNoted, noteWait } from './diagnostics.ts';
import { CuffiError, withDeepStack } from './errors.ts';
import { checkInteger, checkOptions, formatValue } from './validate.ts';

/** How long a call waits. */
export interface WaitOptions {
  /** Aborting stops the wait, which rejects with the signal's reason; the work goes on. */
  readonly signal?: AbortSignal;
  /** The wait rejects with a `TimeoutError` after this many milliseconds. Default: no limit. */
  readonly timeoutMs?: number;
}

/** A wait that has begun: it may pass through several calls, and its time limit is for all of them. */
export interface Wait {
  readonly signal?: AbortSignal | undefined;
  readonly limit?: TimeLimit | undefined;
  /** What is awaited, in words. */
  readonly operation?: string | undefined;
}

interface TimeLimit {
  readonly operation: string;
  readonly timeoutMs: number;
  /** By `performance.now()`. */
  readonly until: number;
  readonly hintOf?: HintOf | undefined;
}

/** Returns what a wait that took too long still waits for: who holds it, and what to do. */
export type HintOf = () => string | undefined;

/** Options whose values may be undefined. */
type MaybeUndefined<T> = { readonly [K in keyof T]: T[K] | undefined };

/** The longest that a timer can be set to. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

/** Returns checked options. @throws TypeError, RangeError for invalid options */
export function checkDeadline(
  options: MaybeUndefined<WaitOptions> | undefined,
  call: string,
): WaitOptions {
  // Most calls pass no options.
  if (options === undefined) return {};
  const { signal, timeoutMs } = checkOptions(options, ['signal', 'timeoutMs'], call);
  if (signal !== undefined) checkSignal(signal);
  if (timeoutMs !== undefined) checkInteger(timeoutMs, 'timeoutMs', 0, MAX_TIMER_MS);
  return { ...(signal && { signal }), ...(timeoutMs !== undefined && { timeoutMs }) };
}

/**
 * An implementation in JavaScript, such as jsdom's, counts as well.
 *
 * @throws TypeError for anything but an AbortSignal
 */
function checkSignal(signal: unknown): void {
  if (signal instanceof AbortSignal) return;
  const isSignal = Object.prototype.toString.call(signal) === '[object AbortSignal]';
  const { aborted, addEventListener, removeEventListener, throwIfAborted } = Object(signal);
  const methods: unknown[] = [addEventListener, removeEventListener, throwIfAborted];
  if (!isSignal || typeof aborted !== 'boolean' || methods.some((m) => typeof m !== 'function'))
    throw new TypeError(`signal must be an AbortSignal, not ${formatValue(signal)}`);
}

/** Node warns of a leak after ten listeners. */
function allowManyListeners(signal: AbortSignal): void {
  try {
    setMaxListeners(0, signal);
  } catch {
    // It is not Node's own class, so Node does not warn.
  }
}

/**
 * Begins the wait of a call: from now on its time counts.
 *
 * @param hintOf for the error of a time-out. A hot path passes the same function in each call
 * @throws TypeError, RangeError for invalid options
 */
export function beginWait(
  options: MaybeUndefined<WaitOptions> | undefined,
  operation: string,
  hintOf?: HintOf,
): Wait {
  const { signal, timeoutMs } = checkDeadline(options, operation);
  if (timeoutMs === undefined) return { signal, operation };
  return {
    signal,
    operation,
    limit: { operation, timeoutMs, until: performance.now() + timeoutMs, hintOf },
  };
}

/** @throws the signal's reason if it is aborted; a `TimeoutError` if the time is over */
export function throwIfOver({ signal, limit }: Wait): void {
  signal?.throwIfAborted();
  if (limit && performance.now() >= limit.until)
    throw timeoutError(limit.operation, limit.timeoutMs, limit.hintOf?.());
}

/**
 * Rejects a wait that is not settled yet with an error that the event loop has found. Its stack then has the lines of the
 * callers that await it, in place of those of the loop. Costs nothing unless a wait fails.
 *
 * @param resolve resolves the promise of the wait
 * @param error an error for this wait alone: its stack is changed
 */
export function rejectWithCallers(
  resolve: (rejected: Promise<never>) => void,
  error: unknown,
): void {
  // V8 finds the callers in a reaction of a promise that they await: the second one, as the first comes
  // before the promise of the wait follows this one.
  resolve(
    Promise.resolve()
      .then(() => {})
      .then(() => {
        if (error instanceof CuffiError || isTimeout(error)) addCallers(error);
        throw error;
      }),
  );
}

const isTimeout = (error: unknown): error is DOMException =>
  error instanceof DOMException && error.name === 'TimeoutError';

/** Replaces the stack of an error by that of the awaiting callers, if there are any. */
export function addCallers(error: Error): void {
  const here = { stack: '' };
  Error.captureStackTrace(here, addCallers);
  const callers = here.stack.split('\n').filter((line) => line.startsWith('    at async '));
  if (callers.length > 0) error.stack = [`${error.name}: ${error.message}`, ...callers].join('\n');
}

/** The error that AbortSignal.timeout makes, too. */
export const timeoutError = (operation: string, timeoutMs: number, hint?: string): DOMException =>
  withDeepStack(
    () =>
      new DOMException(
        `${operation} took longer than ${timeoutMs} ms${hint === undefined ? '' : `: ${hint}`}`,
        'TimeoutError',
      ),
  );

/**
 * Settles as `start` settles it. If the signal or the timeout comes first, it rejects, and calls the
 * function that `start` returned. If `start` throws, it rejects with that error.
 *
 * @param hintOf for the error of a time-out
 */
export function withDeadline<T>(
  { signal, timeoutMs }: WaitOptions,
  operation: string,
  start: (
    resolve: (value: T | Promise<never>) => void,
    reject: (error: unknown) => void,
  ) => () => void,
  hintOf?: HintOf,
): Promise<T> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    if (!signal && timeoutMs === undefined && !areWaitsNoted()) {
      start(resolve, reject);
      return;
    }
    let timer: NodeJS.Timeout | undefined;
    let isSettled = false;
    let note: (() => void) | undefined;
    const settle =
      <V>(then: (value: V) => void) =>
      (value: V): void => {
        isSettled = true;
        note?.();
        clearTimeout(timer);
        signal?.removeEventListener('abort', abort);
        then(value);
      };
    const rejectEarly = settle((reason: unknown) => {
      cancel();
      reject(reason);
    });
    const abort = (): void => rejectEarly(signal?.reason);
    const expire = settle((error: DOMException) => {
      isSettled = false;
      // What the cancellation still delivers comes first.
      cancel();
      if (!isSettled) rejectWithCallers(resolve, error);
    });
    const cancel = start(settle(resolve), settle(reject));
    // Only now: a start that threw, or settled at once, must leave no timer and no listener.
    if (isSettled) return;
    note = noteWait(operation);
    if (signal?.aborted) {
      abort();
      return;
    }
    if (signal) {
      // A signal may end many calls: as of `fetch`, no warning then.
      allowManyListeners(signal);
      signal.addEventListener('abort', abort);
    }
    if (timeoutMs !== undefined)
      timer = setTimeout(() => expire(timeoutError(operation, timeoutMs, hintOf?.())), timeoutMs);
  });
}
