/** Waits that may be given up: by a signal, or after a time. */

import type { WaitOptions } from './poller.ts';
import { checkInstance, checkInteger, checkOptions } from './validate.ts';

/** How long to wait. */
export interface DeadlineOptions extends WaitOptions {
  /** Rejects with a `TimeoutError` after so many milliseconds. Default: waits for ever. */
  readonly timeoutMs?: number;
}

/** Options of which some may have been left undefined. */
type MaybeUndefined<T> = { readonly [K in keyof T]: T[K] | undefined };

/** The longest that a timer can be set to. */
const MAX_TIMEOUT_MS = 2 ** 31 - 1;

/** @throws TypeError, RangeError for options that are none */
export function checkDeadline(
  options: MaybeUndefined<DeadlineOptions> | undefined,
  call: string,
): DeadlineOptions {
  // Most calls have none.
  if (options === undefined) return {};
  const { signal, timeoutMs } = checkOptions(options, ['signal', 'timeoutMs'], call);
  if (signal !== undefined) checkInstance(signal, AbortSignal, 'signal');
  if (timeoutMs !== undefined) checkInteger(timeoutMs, 'timeoutMs', 0, MAX_TIMEOUT_MS);
  return { ...(signal && { signal }), ...(timeoutMs !== undefined && { timeoutMs }) };
}

/** As AbortSignal.timeout's. */
export const timeoutError = (operation: string, timeoutMs: number): DOMException =>
  new DOMException(`${operation} took longer than ${timeoutMs} ms`, 'TimeoutError');

/**
 * What `begin` settles, unless it is given up first: then the function that it answered with is
 * called. What `begin` throws rejects.
 */
export function withDeadline<T>(
  { signal, timeoutMs }: DeadlineOptions,
  operation: string,
  start: (resolve: (value: T) => void, reject: (error: unknown) => void) => () => void,
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
    // Only now: nothing may be left behind of what has thrown, or is over already.
    if (isSettled) return;
    if (signal?.aborted) {
      abort();
      return;
    }
    signal?.addEventListener('abort', abort);
    if (timeoutMs !== undefined)
      timer = setTimeout(() => rejectEarly(timeoutError(operation, timeoutMs)), timeoutMs);
  });
}
