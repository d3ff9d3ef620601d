import { readdirSync, readlinkSync } from 'node:fs';

/** Whether a descriptor is of a file with a name, as `/dev/nvidiactl` and memfds are not. */
function isFileOnDisk(fd: string): boolean {
  try {
    return /^\/(?!memfd:|dev\/)/.test(readlinkSync(`/proc/self/fd/${fd}`));
  } catch {
    // Closed since, as is the one that the folder was read through.
    return true;
  }
}

/**
 * How many descriptors this process has open, other than of files on disk: the thread that loads
 * TypeScript opens and closes those of its cache when it likes.
 */
export const openDescriptors = (): number =>
  readdirSync('/proc/self/fd').filter((fd) => !isFileOnDisk(fd)).length;
