/** Tells whether a descriptor from another process can be memory of the driver in use. */
import { constants, readlinkSync } from 'node:fs';
import { driverName } from './driver.ts';
import {
  checkFd,
  F_GETFL,
  F_SETFL,
  isInMemory,
  libc,
  statusOfFd,
  succeeded,
} from './linux/libc.ts';

/** Device numbers of the kernel: /dev/null and the like, and terminals (pseudoterminals from 136). */
const KERNEL_DEVICE_MAJORS: ReadonlySet<number> = new Set([
  1, 2, 3, 4, 5, 136, 137, 138, 139, 140, 141, 142, 143,
]);
const S_IFCHR = 0o020000;

/** A sender could fake the name with a file system of its own, so the file must be in memory. */
const isEmulatedMemoryFd = (fd: number): boolean =>
  readlinkSync(`/proc/self/fd/${fd}`).startsWith('/memfd:cuffi.') && isInMemory(fd);

/** Whether it is a device, or an anonymous inode of a driver such as a dma-buf. */
function isDeviceFd(fd: number): boolean {
  const { type, major } = statusOfFd(fd) ?? {};
  if (type === S_IFCHR) return !KERNEL_DEVICE_MAJORS.has(major as number);
  return type === 0;
}

/**
 * Whether a descriptor can be memory of the driver. False for sockets, pipes, files and /dev/null.
 * Asks neither the driver nor a file system, which may be the sender's own.
 */
export function mayBeDriverMemory(fd: number): boolean {
  const name = driverName();
  try {
    if (name === 'emulated') return isEmulatedMemoryFd(fd);
    // A test driver may wrap either.
    return isDeviceFd(fd) || (name === 'test' && isEmulatedMemoryFd(fd));
  } catch {
    // Not open, or not readable.
    return false;
  }
}

/**
 * Marks memory that is shared for reading only. The driver has no read-only descriptors: the
 * importer chooses its access. O_APPEND has no effect on a device, belongs to the open file, and
 * goes with it to every process that receives the descriptor.
 */
const READ_ONLY_FLAG = constants.O_APPEND;

/**
 * Marks the open file of a descriptor as memory that is shared for reading only. Every process that
 * receives the descriptor sees the mark.
 *
 * @throws SystemError
 */
export function markReadOnly(fd: number): void {
  const flags = succeeded(libc.fcntl(checkFd(fd, 'fcntl'), F_GETFL, 0), 'fcntl');
  succeeded(libc.fcntl(fd, F_SETFL, flags | READ_ONLY_FLAG), 'fcntl');
}

/**
 * Whether {@link markReadOnly} was called for the open file, in any process. @throws SystemError
 */
export const isMarkedReadOnly = (fd: number): boolean =>
  (succeeded(libc.fcntl(checkFd(fd, 'fcntl'), F_GETFL, 0), 'fcntl') & READ_ONLY_FLAG) !== 0;
