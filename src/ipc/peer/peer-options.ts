/** What every way to get a peer requires: a runtime that has connections, and the options. */

import { runtimeWithoutWatches } from '../../../ffi/linux/poll.ts';
import { checkSettings } from '../../../ffi/settings.ts';
import { MAX_TIMER_MS } from '../../deadline.ts';
import { NotSupportedError } from '../../errors.ts';
import { checkInteger } from '../../validate.ts';
import { checkBusyPollUs } from '../wire/busy-poll.ts';

/** How a peer waits for messages. */
export interface BusyPollOptions {
  /**
   * For how many microseconds the thread polls the connection before it sleeps while `receive`, a
   * loop or `open` waits: at most 1,000,000. Meanwhile nothing else runs on this thread. Default 0:
   * it sleeps at once.
   *
   * Code that is ready to run goes first, so a value that is sent right after `receive()` has gone
   * out. Between two waits the event loop gets a turn. If nothing came, the loop sleeps until
   * something does. All connections with a waiting caller are polled together.
   */
  readonly busyPollUs?: number | undefined;
}

/** How a peer waits: for messages, and for the answers of its requests. */
export interface WaitingOptions extends BusyPollOptions {
  /** The `timeoutMs` of requests that have none. Default: they wait until the connection ends. */
  readonly requestTimeoutMs?: number | undefined;
}

/** How long leases last if the end of their holder cannot be observed. */
export interface GraceOptions {
  /**
   * If the end of the other process cannot be observed: for how many milliseconds after the end of
   * the connection the process is assumed to live. Default 2000.
   */
  readonly orphanGraceMs?: number | undefined;
}

/** All options. */
export interface PeerOptions extends WaitingOptions, GraceOptions {}

/** The names of the options. */
export const peerOptionNames = ['busyPollUs', 'requestTimeoutMs', 'orphanGraceMs'] as const;

/**
 * Every function that makes a connection calls this first.
 *
 * @throws NotSupportedError in Bun and Deno; RangeError for an invalid environment variable
 */
export function assertCanConnect(caller: string): void {
  checkSettings();
  const runtime = runtimeWithoutWatches();
  if (runtime !== undefined)
    throw new NotSupportedError(
      `${caller}() needs Node: ${runtime} cannot watch file descriptors, as a connection must. ` +
        'Run this program with Node, or send getIpcHandle(memory) over a channel of your own',
    );
}

/** Returns the given options. @throws TypeError, RangeError for invalid times */
export function checkPeerOptions({
  busyPollUs,
  requestTimeoutMs,
  orphanGraceMs,
}: PeerOptions): PeerOptions {
  if (busyPollUs !== undefined) checkBusyPollUs(busyPollUs);
  if (requestTimeoutMs !== undefined)
    checkInteger(requestTimeoutMs, 'requestTimeoutMs', 0, MAX_TIMER_MS);
  if (orphanGraceMs !== undefined) checkInteger(orphanGraceMs, 'orphanGraceMs', 0, MAX_TIMER_MS);
  return { busyPollUs, requestTimeoutMs, orphanGraceMs };
}
