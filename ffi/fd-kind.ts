/** File descriptors that the driver in use may have made: another process may send any. */
import { constants, readlinkSync } from 'node:fs';
import { driverName } from './driver.ts';
import { checkFd, isInMemory, libc, statusOfFd, succeeded } from './linux/libc.ts';

/** The kernel's own devices: /dev/null and its kind, and terminals (those of windows from 136 on). */
const KERNEL_DEVICE_MAJORS: ReadonlySet<number> = new Set([
  1, 2, 3, 4, 5, 136, 137, 138, 139, 140, 141, 142, 143,
]);
const S_IFCHR = 0o020000;

/** A file of that name in a file system of the sender's own is none: the name is the sender's. */
const isEmulatedMemoryFd = (fd: number): boolean =>
  readlinkSync(`/proc/self/fd/${fd}`).startsWith('/memfd:cuffi.') && isInMemory(fd);

/** A device, or of the kinds without a file type, which are drivers' own, as a dma-buf. */
function isDeviceFd(fd: number): boolean {
  const { type, major } = statusOfFd(fd) ?? {};
  if (type === S_IFCHR) return !KERNEL_DEVICE_MAJORS.has(major as number);
  return type === 0;
}

/**
 * Whether memory may be behind it: of a socket, a pipe, a file or /dev/null the driver is not asked.
 * Nor is a file system, which may be the sender's own.
 */
export function mayBeMemory(fd: number): boolean {
  const name = driverName();
  try {
    if (name === 'emulated') return isEmulatedMemoryFd(fd);
    // A test's own may stand before either.
    return isDeviceFd(fd) || (name === 'test' && isEmulatedMemoryFd(fd));
  } catch {
    // Not open, or not to be seen.
    return false;
  }
}

const F_GETFL = 3;
const F_SETFL = 4;

/**
 * The driver has no file descriptor of memory that is only read, and whoever imports one says itself
 * what it will do. So what is shared for reading has this flag, which means nothing to a device: it
 * belongs to the open file, and goes with it to every process that it is sent to.
 */
const READ_ONLY_FLAG = constants.O_APPEND;

/**
 * Marks the open file behind a descriptor as memory that is shared for reading, here and wherever
 * the descriptor is sent.
 *
 * @throws SystemError
 */
export function markForReading(fd: number): void {
  const flags = succeeded(libc.fcntl(checkFd(fd, 'fcntl'), F_GETFL, 0), 'fcntl');
  succeeded(libc.fcntl(fd, F_SETFL, flags | READ_ONLY_FLAG), 'fcntl');
}

/** Whether {@link markForReading} was called for it, in whichever process. @throws SystemError */
export const isForReading = (fd: number): boolean =>
  (succeeded(libc.fcntl(checkFd(fd, 'fcntl'), F_GETFL, 0), 'fcntl') & READ_ONLY_FLAG) !== 0;
