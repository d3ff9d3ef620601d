import { errno, libc, SystemError, succeeded } from './libc.ts';

const LOCK_EX_NB = 2 | 4;
const LOCK_UN = 8;
const EWOULDBLOCK = 11;
const LOCK_TRIES = 1000;
const sleeper = new Int32Array(new SharedArrayBuffer(4));

/**
 * Runs `use` with an exclusive lock on an open file or directory (`flock`). Other processes, and
 * threads that opened the file themselves, wait meanwhile. This thread blocks for the lock, so keep
 * `use` short.
 *
 * @throws SystemError EWOULDBLOCK if the lock is not free within about a second
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
 * Blocks this thread until `tryAcquire` returns true.
 *
 * @throws SystemError EWOULDBLOCK if it does not within about a second
 */
export function waitForLock(tryAcquire: () => boolean): void {
  for (let tries = 0; !tryAcquire(); tries++) {
    if (tries === LOCK_TRIES) throw new SystemError('flock', EWOULDBLOCK);
    Atomics.wait(sleeper, 0, 0, 1);
  }
}
