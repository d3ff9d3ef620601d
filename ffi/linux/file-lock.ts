import { errno, libc, SystemError, succeeded } from './libc.ts';

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
  waitForLock(() => {
    if (libc.flock(fd, LOCK_EX_NB) === 0) return true;
    if (errno() !== EWOULDBLOCK) succeeded(-1, 'flock');
    return false;
  });
  try {
    return use();
  } finally {
    libc.flock(fd, LOCK_UN);
  }
}

/**
 * Waits, blocking this thread, for what others give up in a moment.
 *
 * @throws SystemError where they do not within about a second
 */
export function waitForLock(tryAcquire: () => boolean): void {
  for (let tries = 0; !tryAcquire(); tries++) {
    if (tries === LOCK_TRIES) throw new SystemError('flock', EWOULDBLOCK);
    Atomics.wait(sleeper, 0, 0, 1);
  }
}
