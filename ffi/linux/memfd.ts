/** Memory that processes share without trusting each other: nobody can shrink it or punch holes. */
import { fstatSync } from 'node:fs';
import { addressOf, withAddress } from '../native.ts';
import { closeFd, errno, libc, SystemError, succeeded } from './libc.ts';

/**
 * A memfd, close-on-exec, whose size is fixed. If it could shrink, a process that touches its mapping
 * would be killed. By default other processes may add seals: see {@link sealAgainstHolePunching}.
 *
 * @throws SystemError
 */
export function createSealedMemfd(
  name: string,
  byteLength: number,
  { allowsMoreSeals = true } = {},
): number {
  const fd = withAddress(Buffer.from(`${name}\0`), (address) =>
    succeeded(libc.memfd_create(address, MFD_CLOEXEC | MFD_ALLOW_SEALING), 'memfd_create'),
  );
  const seals = allowsMoreSeals ? SIZE_SEALS : SIZE_SEALS | F_SEAL_SEAL;
  if (libc.ftruncate(fd, byteLength) < 0 || libc.fcntl(fd, F_ADD_SEALS, seals) < 0) {
    const number = errno();
    closeFd(fd);
    throw new SystemError('memfd_create', number);
  }
  return fd;
}

/** Allocates the pages of a memfd, which are zero. @throws SystemError if the system has no memory */
export function allocatePages(fd: number, byteLength: number): void {
  succeeded(libc.fallocate(fd, 0, 0, byteLength), 'fallocate');
}

/**
 * Whether a descriptor, from any process, is memory of exactly that size, which is fixed. Memory of
 * huge pages is refused: touching it kills the process once the system has no huge page left.
 */
export function isSealedMemfd(fd: number, byteLength: number): boolean {
  // Files on a disk and devices have no seals. Their size is not read: that may block.
  const seals = libc.fcntl(fd, F_GET_SEALS, 0);
  if (seals < 0 || (seals & SIZE_SEALS) !== SIZE_SEALS) return false;
  return fstatSync(fd).size === byteLength && !hasHugePages(fd);
}

/** @param fd a memfd: other file systems may block */
function hasHugePages(fd: number): boolean {
  const status = new BigInt64Array(STATFS_WORDS);
  return libc.fstatfs(fd, addressOf(status)) < 0 || status[0] === HUGETLBFS_MAGIC;
}

/**
 * Prevents all processes from punching holes into a memfd, and from creating writable mappings.
 * Existing mappings stay writable. After a hole is punched, a device keeps the old pages that it has
 * locked, while the processes get new ones: neither would see what the other writes.
 *
 * Returns false if the kernel lacks the seal (before 5.1).
 *
 * @throws SystemError EPERM if the memfd allows no further seals or is read-only
 */
export function sealAgainstHolePunching(fd: number): boolean {
  if (libc.fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) === 0) return true;
  const number = errno();
  if (number === EINVAL) return false;
  throw new SystemError('fcntl', number);
}

/** Whether {@link sealAgainstHolePunching} was called for a memfd, in any process. */
export const isSealedAgainstHolePunching = (fd: number): boolean =>
  (libc.fcntl(fd, F_GET_SEALS, 0) & (F_SEAL_FUTURE_WRITE | INVALID_SEALS)) === F_SEAL_FUTURE_WRITE;

/** struct statfs, of which the first word is the type of the file system. */
const STATFS_WORDS = 16;
const HUGETLBFS_MAGIC = 0x958458f6n;
const MFD_CLOEXEC = 1;
const MFD_ALLOW_SEALING = 2;
const F_ADD_SEALS = 1033;
const F_GET_SEALS = 1034;
const F_SEAL_SEAL = 1;
const F_SEAL_FUTURE_WRITE = 0x10;
/** The sign of a failed call. */
const INVALID_SEALS = 1 << 31;
/** F_SEAL_SHRINK and F_SEAL_GROW. */
const SIZE_SEALS = 2 | 4;
const EINVAL = 22;
