/** File descriptors that the driver in use may have made: another process may send any. */
import { readlinkSync } from 'node:fs';
import { driverName } from './driver.ts';
import { isInMemory, statusOfFd } from './libc.ts';

/** The kernel's own devices: /dev/null and its kind, and terminals (those of windows from 136 on). */
const ORDINARY_MAJORS: ReadonlySet<number> = new Set([
  1, 2, 3, 4, 5, 136, 137, 138, 139, 140, 141, 142, 143,
]);
const S_IFCHR = 0o020000;

/** A file of that name in a file system of the sender's own is none: the name is the sender's. */
const isEmulated = (fd: number): boolean =>
  readlinkSync(`/proc/self/fd/${fd}`).startsWith('/memfd:cuffi.') && isInMemory(fd);

/** A device, or of the kinds without a file type, which are drivers' own, as a dma-buf. */
function isOfDevice(fd: number): boolean {
  const { type, major } = statusOfFd(fd) ?? {};
  if (type === S_IFCHR) return !ORDINARY_MAJORS.has(major as number);
  return type === 0;
}

/**
 * Whether memory may be behind it: of a socket, a pipe, a file or /dev/null the driver is not asked.
 * Nor is a file system, which may be the sender's own.
 */
export function mayBeMemory(fd: number): boolean {
  const name = driverName();
  try {
    if (name === 'emulated') return isEmulated(fd);
    // A test's own may stand before either.
    return isOfDevice(fd) || (name === 'test' && isEmulated(fd));
  } catch {
    // Not open, or not to be seen.
    return false;
  }
}
