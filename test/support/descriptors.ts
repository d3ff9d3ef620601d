import assert from 'node:assert/strict';
import { readdirSync, readlinkSync } from 'node:fs';
import { countDiscarded } from '../../ffi/linux/close-fd.ts';

/**
 * Whether a descriptor is of a file with a name, as `/dev/nvidiactl` and memfds are not, or the one
 * by which a thread watches all others, which is opened at its first use and stays.
 */
function isUncounted(fd: string): boolean {
  try {
    return /^\/(?!memfd:|dev\/)|eventpoll/.test(readlinkSync(`/proc/self/fd/${fd}`));
  } catch {
    // Closed since, as is the one that the folder was read through.
    return true;
  }
}

const MAX_TRIES = 2000;

/** Blocks until what is discarded is closed, unless that takes for ever. */
export function discardsDone(): void {
  const word = new Int32Array(new SharedArrayBuffer(4));
  for (let tries = 0; countDiscarded() > 0 && tries < MAX_TRIES; tries++)
    Atomics.wait(word, 0, 0, 1);
}

/** All descriptors that this process has open. */
export function descriptorNumbers(): ReadonlySet<string> {
  discardsDone();
  return new Set(readdirSync('/proc/self/fd'));
}

/** What was opened since, and is: where each leads to. See {@link openDescriptors}. */
export const openedSince = (before: ReadonlySet<string>): string[] =>
  [...descriptorNumbers()]
    .filter((fd) => !before.has(fd) && !isUncounted(fd))
    .map((fd) => readlinkSync(`/proc/self/fd/${fd}`));

/**
 * How many descriptors this process has open, other than epolls and files on disk: the thread that
 * loads TypeScript opens and closes those of its cache when it likes.
 */
export function openDescriptors(): number {
  discardsDone();
  return readdirSync('/proc/self/fd').filter((fd) => !isUncounted(fd)).length;
}

/**
 * Waits until as many descriptors are open as before. A connection that is closed keeps its socket
 * until what was begun to be sent has gone out, which takes turns of the event loop.
 */
export async function descriptorsReturnTo(before: number): Promise<void> {
  const until = performance.now() + 10_000;
  while (openDescriptors() !== before && performance.now() < until)
    await new Promise((resolve) => setTimeout(resolve, 1));
  assert.equal(openDescriptors(), before, 'descriptors');
}
