/** What the ways to get a peer are told about it. */
import { checkInteger } from '../../validate.ts';

/** How a peer waits for what comes. */
export interface BusyPollOptions {
  /**
   * For how many microseconds the thread looks at the connection before it sleeps, where `receive`,
   * a loop or `open` waits and nothing is there: at most 1,000,000. Meanwhile nothing else runs on
   * this thread. Default 0: it sleeps at once.
   *
   * What is ready to run does so before: a value that is sent right after `receive()` has gone out.
   * Between two such waits the event loop has its turn, and where nothing came it sleeps until
   * something does. Of several connections that are waited for all are looked at.
   */
  readonly busyPollUs?: number | undefined;
}

/** How long what a process has is kept for it where nobody sees its end. */
export interface GraceOptions {
  /**
   * Where the end of the other process cannot be seen: for how many milliseconds after the end of
   * the connection it is taken to live. Default 2000.
   */
  readonly orphanGraceMs?: number | undefined;
}

/** All of them. */
export interface PeerOptions extends BusyPollOptions, GraceOptions {}

/** Their names. */
export const peerOptionNames = ['busyPollUs', 'orphanGraceMs'] as const;

const MAX_BUSY_POLL_US = 1_000_000;
const MAX_GRACE_MS = 2 ** 31 - 1;

/** The options that are given. @throws TypeError, RangeError for what is no time */
export function checkPeerOptions({ busyPollUs, orphanGraceMs }: PeerOptions): PeerOptions {
  if (busyPollUs !== undefined) checkInteger(busyPollUs, 'busyPollUs', 0, MAX_BUSY_POLL_US);
  if (orphanGraceMs !== undefined) checkInteger(orphanGraceMs, 'orphanGraceMs', 0, MAX_GRACE_MS);
  return { busyPollUs, orphanGraceMs };
}
