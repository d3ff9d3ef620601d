/** Memory that processes share without trusting each other: none of them can change its size. */
import { fstatSync } from 'node:fs';
import { closeFd, errno, libc, SystemError, succeeded } from './libc.ts';
import { withAddress } from './native.ts';

/**
 * A memfd, close-on-exec, whose size is fixed: a mapping of it cannot lose its pages, which would
 * end the process that touches them.
 *
 * @throws SystemError
 */
export function createSealedMemfd(name: string, byteLength: number): number {
  const fd = withAddress(Buffer.from(`${name}\0`), (address) =>
    succeeded(libc.memfd_create(address, MFD_CLOEXEC | MFD_ALLOW_SEALING), 'memfd_create'),
  );
  if (libc.ftruncate(fd, byteLength) < 0 || libc.fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
    const number = errno();
    closeFd(fd);
    throw new SystemError('memfd_create', number);
  }
  return fd;
}

/** Whether a descriptor, from wherever, is memory of that size which nobody can change. */
export function isSealedMemfd(fd: number, byteLength: number): boolean {
  // Files on a disk and devices know no seals.
  const seals = libc.fcntl(fd, F_GET_SEALS, 0);
  return seals >= 0 && (seals & SHRINK) !== 0 && fstatSync(fd).size === byteLength;
}

const MFD_CLOEXEC = 1;
const MFD_ALLOW_SEALING = 2;
const F_ADD_SEALS = 1033;
const F_GET_SEALS = 1034;
const SHRINK = 2;
// Sealed itself, shrink, grow
const SEALS = 1 | SHRINK | 4;
