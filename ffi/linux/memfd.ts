/** Memory that processes share without trusting each other: none of them can take a part of it away. */
import { fstatSync } from 'node:fs';
import { withAddress } from '../native.ts';
import { closeFd, errno, libc, SystemError, succeeded } from './libc.ts';

/**
 * A memfd, close-on-exec, whose size is fixed: a mapping of it cannot lose its pages, which would
 * end the process that touches them. The process that it is sent to may seal more: see
 * {@link sealAgainstHoles}.
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

/** Whether a descriptor, from any process, is memory of that size, which nobody can change. */
export function isSealedMemfd(fd: number, byteLength: number): boolean {
  // Files on a disk and devices know no seals; those are asked for nothing else.
  const seals = libc.fcntl(fd, F_GET_SEALS, 0);
  return seals >= 0 && (seals & SIZE_SEALS) === SIZE_SEALS && fstatSync(fd).size === byteLength;
}

/**
 * Keeps everybody from punching holes into a memfd, and from mapping it to write anew; mappings that
 * are there stay writable. A device that has locked the pages of a mapping would keep what was
 * punched out, while the processes get new pages: neither would see what the other writes.
 *
 * False where the kernel (before 5.1) does not know the seal.
 *
 * @throws SystemError EPERM where its maker allows no more seals, or it cannot be written
 */
export function sealAgainstHoles(fd: number): boolean {
  if (libc.fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) === 0) return true;
  const number = errno();
  if (number === EINVAL) return false;
  throw new SystemError('fcntl', number);
}

const MFD_CLOEXEC = 1;
const MFD_ALLOW_SEALING = 2;
const F_ADD_SEALS = 1033;
const F_GET_SEALS = 1034;
const F_SEAL_SEAL = 1;
const F_SEAL_FUTURE_WRITE = 0x10;
/** F_SEAL_SHRINK and F_SEAL_GROW. */
const SIZE_SEALS = 2 | 4;
const EINVAL = 22;
