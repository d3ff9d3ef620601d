import { readdirSync, readlinkSync } from 'node:fs';
import { countDiscarded } from '../../ffi/discard.ts';

/** Whether a descriptor is of a file with a name, as `/dev/nvidiactl` and memfds are not. */
function isFileOnDisk(fd: string): boolean {
  try {
    return /^\/(?!memfd:|dev\/)/.test(readlinkSync(`/proc/self/fd/${fd}`));
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

/**
 * How many descriptors this process has open, other than of files on disk: the thread that loads
 * TypeScript opens and closes those of its cache when it likes.
 */
export function openDescriptors(): number {
  discardsDone();
  return readdirSync('/proc/self/fd').filter((fd) => !isFileOnDisk(fd)).length;
}
