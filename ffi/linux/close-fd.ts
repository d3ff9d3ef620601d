/**
 * Closing what came from another process. `close(2)` may wait for as long as that process likes: for
 * a socket with SO_LINGER, for a file of its own file system (FUSE), and for a socket in whose queue
 * such descriptors are on their way. Those are closed by threads of their own, a few at a time:
 * libuv's would be missing to all others, and Node waits for them before it exits.
 */

import { type NativeFunction, openLibrary } from '../library.ts';
import { allocatePermanent, viewMemory } from '../native.ts';
import { type Address, type CType, pointer } from '../types.ts';
import { checkFd, closeFd, errno, isInMemory, libcSymbol, statusOfFd } from './libc.ts';

/**
 * Closes a descriptor that came from another process, without waiting: at once where the kernel
 * itself can close it, else soon, off this thread.
 *
 * @throws SystemError EBADF where it is not open
 */
export function discardFd(fd: number): void {
  if (closesWithoutBlocking(checkFd(fd, 'close'))) closeFd(fd);
  else closeOffThread(fd);
}

/** As {@link discardFd}, each of them. */
export function discardFds(fds: Iterable<number>): void {
  for (const fd of fds) discardFd(fd);
}

/**
 * Closes a descriptor off this thread. It counts as open until a thread is free to close it; then its
 * number is free at once, however long that takes. The end of the process waits for none of it.
 */
export function closeOffThread(fd: number): void {
  closeQueue.push(fd);
  advanceQueue();
}

/** How many descriptors are still to be closed, or in the middle of it. */
export function countDiscarded(): number {
  advanceQueue();
  return closeQueue.length + closingThreads.length;
}

/** How many descriptors may be in the middle of their close at a time: a thread each. */
const MAX_CLOSING_THREADS = 32;
/** How long a thread that has ended may go unseen, in milliseconds. */
const POLL_INTERVAL_MS = 1;

const closeQueue: number[] = [];
/** The threads, as pthread_t. */
let closingThreads: number[] = [];
let timer: NodeJS.Timeout | undefined;

/** Lets the threads that have ended go, and has others close what waits. */
function advanceQueue(): void {
  if (closingThreads.length > 0)
    closingThreads = closingThreads.filter((id) => !getThreadFunctions().hasEnded(id));
  while (closeQueue.length > 0 && closingThreads.length < MAX_CLOSING_THREADS) {
    const id = getThreadFunctions().close(closeQueue[0] as number);
    // No thread is to be had now: it stays first.
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
/** /dev/null and its kind; /dev/nvidiactl and its kind, which the driver's own descriptors are of. */
const NON_BLOCKING_MAJORS: ReadonlySet<number> = new Set([1, 195]);
/** To give back more memory takes longer than a thread does. */
const MAX_FREED_INLINE = 64 << 20;
const EBADF = 9;

/** Whether nobody else is asked while a descriptor is closed. */
function closesWithoutBlocking(fd: number): boolean {
  const status = statusOfFd(fd);
  // The error is close's own, for its caller.
  if (!status) return errno() === EBADF;
  if (status.type === S_IFCHR) return NON_BLOCKING_MAJORS.has(status.major);
  return status.storedByteLength <= MAX_FREED_INLINE && isInMemory(fd);
}

interface ThreadFunctions {
  /** Closes a descriptor in a new thread; undefined where none is to be had. */
  close(fd: number): number | undefined;
  /** Whether a thread has ended; then it is gone. */
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
  // What a thread runs takes one pointer, whose lower half `close` reads, and no JavaScript.
  const close = libcSymbol('close');
  const idAddress: Address = allocatePermanent(8);
  const id = new BigUint64Array(viewMemory(idAddress, 8));
  return {
    close: (fd) => (create(idAddress, 0, close, fd) === 0 ? Number(id[0]) : undefined),
    hasEnded: (thread) => tryJoin(thread, 0) === 0,
  };
}

/** Before glibc 2.34 threads were a library of their own. */
function bindThreadFunction(name: string, params: readonly CType[]): (...args: number[]) => number {
  for (const library of ['libc.so.6', 'libpthread.so.0', 'libc.so', 'libc.musl-x86_64.so.1']) {
    let bound: NativeFunction | undefined;
    try {
      bound = openLibrary([library]).bind(name, params);
    } catch {
      // Another libc: the next one.
    }
    if (bound) return bound as unknown as (...args: number[]) => number;
  }
  throw new Error(`no library of this system has ${name}: descriptors cannot be closed off thread`);
}
