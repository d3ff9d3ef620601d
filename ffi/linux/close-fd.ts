/**
 * Closes descriptors that came from another process. That process can make `close(2)` block: with a
 * socket that has SO_LINGER, with a file of a FUSE file system, or with a socket whose queue holds
 * such descriptors. Threads of their own close those, a few at a time. Threads of libuv's pool
 * would be missing elsewhere, and Node waits for them before it exits.
 */

import { type NativeFunction, openLibrary } from '../library.ts';
import { allocatePermanent, viewMemory } from '../native.ts';
import { type Address, type CType, pointer } from '../types.ts';
import { checkFd, closeFd, errno, isInMemory, libcSymbol, statusOfFd } from './libc.ts';

/**
 * Closes a descriptor that came from another process, without blocking: at once if the kernel
 * alone can close it, otherwise soon and on another thread.
 *
 * @throws SystemError EBADF if it is not open
 */
export function discardFd(fd: number): void {
  if (closesWithoutBlocking(checkFd(fd, 'close'))) closeFd(fd);
  else closeOffThread(fd);
}

/** Calls {@link discardFd} for each descriptor. */
export function discardFds(fds: Iterable<number>): void {
  for (const fd of fds) discardFd(fd);
}

/**
 * Closes a descriptor on another thread. It stays open until a thread is free to close it. Then its
 * number is free at once, however long the close takes. The process exits without waiting for it.
 */
export function closeOffThread(fd: number): void {
  closeQueue.push(fd);
  advanceQueue();
}

/** The number of descriptors whose close has not returned. */
export function countPendingCloses(): number {
  advanceQueue();
  return closeQueue.length + closingThreads.length;
}

/** The most closes that run at a time, each on a thread of its own. */
const MAX_CLOSING_THREADS = 32;
/** How often to check for threads that have ended, in milliseconds. */
const POLL_INTERVAL_MS = 1;

const closeQueue: number[] = [];
/** The running threads, as pthread_t. */
let closingThreads: number[] = [];
let timer: NodeJS.Timeout | undefined;

/** Joins the threads that have ended, and starts others for the queue. */
function advanceQueue(): void {
  if (closingThreads.length > 0)
    closingThreads = closingThreads.filter((id) => !getThreadFunctions().hasEnded(id));
  while (closeQueue.length > 0 && closingThreads.length < MAX_CLOSING_THREADS) {
    const id = getThreadFunctions().close(closeQueue[0] as number);
    // The system has no thread left: the descriptor stays first in the queue.
    if (id === undefined) break;
    closeQueue.shift();
    closingThreads.push(id);
  }
  if (timer || (closingThreads.length === 0 && closeQueue.length === 0)) return;
  timer = setTimeout(() => {
    timer = undefined;
    advanceQueue();
  }, POLL_INTERVAL_MS);
  timer.unref();
}

const S_IFCHR = 0o020000;
/** The device numbers of /dev/null and of /dev/nvidiactl, which descriptors of the driver have. */
const NON_BLOCKING_MAJORS: ReadonlySet<number> = new Set([1, 195]);
/** Freeing more memory than this takes longer than starting a thread. */
const MAX_FREED_INLINE = 64 << 20;
const EBADF = 9;

/** Whether the kernel closes a descriptor without asking another process. */
function closesWithoutBlocking(fd: number): boolean {
  const status = statusOfFd(fd);
  // The caller's close reports this error.
  if (!status) return errno() === EBADF;
  if (status.type === S_IFCHR) return NON_BLOCKING_MAJORS.has(status.major);
  return status.storedByteLength <= MAX_FREED_INLINE && isInMemory(fd);
}

interface ThreadFunctions {
  /** Closes a descriptor on a new thread. Returns the thread, or undefined if none can be created. */
  close(fd: number): number | undefined;
  /** Whether a thread has ended. If so, it is joined. */
  hasEnded(id: number): boolean;
}

let threadFunctions: ThreadFunctions | undefined;
function getThreadFunctions(): ThreadFunctions {
  threadFunctions ??= createThreadFunctions();
  return threadFunctions;
}

function createThreadFunctions(): ThreadFunctions {
  const create = bindThreadFunction('pthread_create', [pointer, pointer, pointer, pointer]);
  const tryJoin = bindThreadFunction('pthread_tryjoin_np', [pointer, pointer]);
  // The thread runs libc's `close` itself, which reads its argument from the lower half of the
  // pointer.
  const close = libcSymbol('close');
  const idAddress: Address = allocatePermanent(8);
  const id = new BigUint64Array(viewMemory(idAddress, 8));
  return {
    close: (fd) => (create(idAddress, 0, close, fd) === 0 ? Number(id[0]) : undefined),
    hasEnded: (thread) => tryJoin(thread, 0) === 0,
  };
}

/** Before glibc 2.34 the thread functions were in a separate library. */
function bindThreadFunction(name: string, params: readonly CType[]): (...args: number[]) => number {
  for (const library of ['libc.so.6', 'libpthread.so.0', 'libc.so', 'libc.musl-x86_64.so.1']) {
    let bound: NativeFunction | undefined;
    try {
      bound = openLibrary([library]).bind(name, params);
    } catch {
      // Not this libc: try the next.
    }
    if (bound) return bound as unknown as (...args: number[]) => number;
  }
  throw new Error(`no system library has ${name}: descriptors cannot be closed on another thread`);
}
