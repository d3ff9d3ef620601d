/** Descriptors that are closed when their worker thread is terminated. */
import { closeSync, openSync } from 'node:fs';
import { isMainThread } from '../thread.ts';
import { closeFd, errno, libc, SystemError } from './libc.ts';

/** A descriptor that lives at most as long as its thread. */
export interface ThreadFd {
  readonly fd: number;
  /** Call it once. */
  close(): void;
}

/**
 * Makes a descriptor close when this thread ends, however it ends. Its number may change.
 *
 * @param fd owned from now on, also if this throws
 * @param close closes it, except at the end of a worker thread
 * @throws SystemError EMFILE or EBADF
 */
export function closeWithThread(fd: number, close: (fd: number) => void): ThreadFd {
  // The main thread ends with the process.
  if (isMainThread()) return { fd, close: () => close(fd) };
  let own: number | undefined;
  try {
    // Node closes only descriptors that it has opened itself. So it opens a number, and dup3 replaces
    // what is behind it. The file itself is not opened again: that could block, or need more rights
    // than came with the descriptor.
    own = openSync('/dev/null', 'r');
    if (libc.dup3(fd, own, O_CLOEXEC) < 0) throw new SystemError('dup3', errno());
  } catch (error) {
    if (own !== undefined) closeSync(own);
    close(fd);
    if (error instanceof SystemError) throw error;
    throw new SystemError('open', Math.abs((error as NodeJS.ErrnoException).errno ?? 0));
  }
  closeFd(fd);
  const copy = own;
  return { fd: copy, close: () => closeSync(copy) };
}

const O_CLOEXEC = 0x8_0000;
