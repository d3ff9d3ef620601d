/** Waits that end early: by a signal, or after a time. */

import { setMaxListeners } from 'node:events';
import type { WaitOptions } from './poller.ts';
import { checkInstance, checkInteger, checkOptions } from './validate.ts';

/** How long to wait. */
export interface DeadlineOptions extends WaitOptions {
  /** Rejects with a `TimeoutError` after this many milliseconds. Default: no limit. */
  readonly timeoutMs?: number;
}

/** Options whose values may be undefined. */
type MaybeUndefined<T> = { readonly [K in keyof T]: T[K] | undefined };

/** The longest that a timer can be set to. */
const MAX_TIMEOUT_MS = 2 ** 31 - 1;

/** Returns checked options. @throws TypeError, RangeError for invalid options */
export function checkDeadline(
  options: MaybeUndefined<DeadlineOptions> | undefined,
  call: string,
): DeadlineOptions {
  // Most calls pass no options.
  if (options === undefined) return {};
  const { signal, timeoutMs } = checkOptions(options, ['signal', 'timeoutMs'], call);
  if (signal !== undefined) checkInstance(signal, AbortSignal, 'signal');
  if (timeoutMs !== undefined) checkInteger(timeoutMs, 'timeoutMs', 0, MAX_TIMEOUT_MS);
  return { ...(signal && { signal }), ...(timeoutMs !== undefined && { timeoutMs }) };
}

/** The error that AbortSignal.timeout makes, too. */
export const timeoutError = (operation: string, timeoutMs: number, hint?: string): DOMException =>
  new DOMException(
    `${operation} took longer than ${timeoutMs} ms${hint === undefined ? '' : `: ${hint}`}`,
    'TimeoutError',
  );

/**
 * Settles as `start` settles it. If the signal or the timeout comes first, it rejects, and calls the
 * function that `start` returned. If `start` throws, it rejects with that error.
 *
 * @param hintOf returns what to do about a time-out
 */
export function withDeadline<T>(
  { signal, timeoutMs }: DeadlineOptions,
  operation: string,
  start: (resolve: (value: T) => void, reject: (error: unknown) => void) => () => void,
  hintOf?: () => string | undefined,
): Promise<T> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    if (!signal && timeoutMs === undefined) {
      start(resolve, reject);
      return;
    }
    let timer: NodeJS.Timeout | undefined;
    let isSettled = false;
    const settle =
      <V>(then: (value: V) => void) =>
      (value: V): void => {
        isSettled = true;
        clearTimeout(timer);
        signal?.removeEventListener('abort', abort);
        then(value);
      };
    const rejectEarly = settle((reason: unknown) => {
      cancel();
      reject(reason);
    });
    const abort = (): void => rejectEarly(signal?.reason);
    const cancel = start(settle(resolve), settle(reject));
    // Only now: a start that threw, or settled at once, must leave no timer and no listener.
    if (isSettled) return;
    if (signal?.aborted) {
      abort();
      return;
    }
    if (signal) {
      // A signal may end many calls: as of `fetch`, no warning then.
      setMaxListeners(0, signal);
      signal.addEventListener('abort', abort);
    }
    if (timeoutMs !== undefined)
      timer = setTimeout(
        () => rejectEarly(timeoutError(operation, timeoutMs, hintOf?.())),
        timeoutMs,
      );
  });
}
