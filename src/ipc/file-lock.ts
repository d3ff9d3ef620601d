import { errno, libc, succeeded } from '../../ffi/libc.ts';

const LOCK_EX_NB = 2 | 4;
const LOCK_UN = 8;
const EWOULDBLOCK = 11;
const LOCK_TRIES = 1000;
const sleeper = new Int32Array(new SharedArrayBuffer(4));

/**
 * Runs `use` while nobody else has the lock of an open file or directory: no other process, nor
 * another thread with a descriptor that it opened itself. It is for moments: this thread waits.
 *
 * @throws SystemError where it cannot be had within about a second
 */
export function withFileLock<T>(fd: number, use: () => T): T {
  for (let tries = 0; libc.flock(fd, LOCK_EX_NB) < 0; tries++) {
    if (errno() !== EWOULDBLOCK || tries === LOCK_TRIES) succeeded(-1, 'flock');
    Atomics.wait(sleeper, 0, 0, 1);
  }
  try {
    return use();
  } finally {
    libc.flock(fd, LOCK_UN);
  }
}
