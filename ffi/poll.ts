/**
 * Readiness of descriptors on Node's own event loop, without a thread: the only user of
 * `koffi.node.poll`, which aborts the process on a descriptor it cannot poll and on one polled
 * twice, crashes when used after its close, and loses what its callback throws. So everything is
 * checked before it is asked.
 */
import koffi from 'koffi';
import { checkFd, libc, SystemError, succeeded } from './libc.ts';
import { addressOf } from './native.ts';

/** What to watch a descriptor for. */
export interface WatchedEvents {
  readonly readable?: boolean;
  readonly writable?: boolean;
  /** The other side has closed or shut down its sending side. */
  readonly disconnect?: boolean;
}

/** What a descriptor is ready for. */
export interface Readiness {
  readonly readable: boolean;
  readonly writable: boolean;
  readonly disconnect: boolean;
  /** An error is pending: the next read or write reports it. */
  readonly error: boolean;
}

/** A descriptor being watched. Close it before the descriptor itself. */
export interface FdWatch extends Disposable {
  readonly fd: number;
  readonly closed: boolean;
  /** Ends the watch; `onReady` is not called again. May be called twice. */
  close(): void;
  /** Lets the watch keep the process alive, as it does from the start. */
  ref(): void;
  /** Lets the process end although the watch is open. */
  unref(): void;
}

/**
 * Calls `onReady` once per turn of the event loop while `fd` is ready for what `events` names.
 * It is level-triggered: it goes on until the descriptor has been read or written, or the watch is
 * closed. What `onReady` throws becomes an uncaught exception, as in a timer.
 *
 * The descriptor becomes non-blocking. A descriptor that Node watches itself (a `net.Socket`'s)
 * must be duplicated first.
 *
 * @throws SystemError EBADF where `fd` is not open, EPERM where it is of a kind without readiness
 * (a regular file, a directory, /dev/null), EEXIST while another watch of it is open
 * @throws TypeError where `events` names nothing
 */
export function watchFd(
  fd: number,
  events: WatchedEvents,
  onReady: (readiness: Readiness) => void,
): FdWatch {
  if (!(events.readable || events.writable || events.disconnect))
    throw new TypeError('a watch needs readable, writable or disconnect');
  if (typeof onReady !== 'function') throw new TypeError('a watch needs a function to call');
  if (watches.has(fd)) throw new SystemError('poll', EEXIST, `descriptor ${fd} is watched already`);
  checkPollable(fd);
  return new PollWatch(fd, events, onReady);
}

/**
 * Resolves when a read of `fd` would not block: something is there, or the end, or an error that
 * the read reports. The pending promise keeps the process alive and counts as a watch of `fd`.
 *
 * @throws SystemError as {@link watchFd}
 * @throws the signal's reason when it aborts first
 */
export function readable(fd: number, options: { signal?: AbortSignal } = {}): Promise<void> {
  const { signal } = options;
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const settle = (): void => {
      watch.close();
      signal?.removeEventListener('abort', abort);
    };
    const abort = (): void => {
      settle();
      reject(signal?.reason);
    };
    const watch = watchFd(fd, { readable: true }, () => {
      settle();
      resolve();
    });
    signal?.addEventListener('abort', abort, { once: true });
  });
}

const EPERM = 1;
const EBADF = 9;
const EEXIST = 17;

// Holds every open watch: a poll handle that nothing refers to is collected and never fires.
const watches = new Map<number, PollWatch>();

// While Node frees its environment the loop turns once more: koffi would call back into an engine
// that runs no JavaScript any more, which aborts the process.
const closeAll = (): void => {
  for (const watch of [...watches.values()]) watch.close();
};

/** How koffi really calls back; its declarations leave out the status. */
type PollCallback = (
  status: number,
  ready: { readable: boolean; writable: boolean; disconnect: boolean },
) => void;
type DeclaredPollCallback = Parameters<typeof koffi.node.poll>[1];

class PollWatch implements FdWatch {
  readonly fd: number;
  readonly #events: WatchedEvents;
  readonly #onReady: (readiness: Readiness) => void;
  readonly #poll: ReturnType<typeof koffi.node.poll>;
  #delivery: NodeJS.Immediate | undefined;
  #closed = false;

  constructor(fd: number, events: WatchedEvents, onReady: (readiness: Readiness) => void) {
    this.fd = fd;
    this.#events = { ...events };
    this.#onReady = onReady;
    this.#poll = koffi.node.poll(fd, this.#events, this.#fired as unknown as DeclaredPollCallback);
    if (watches.size === 0) process.on('exit', closeAll);
    watches.set(fd, this);
  }

  // An exception thrown in here would be lost, and nothing runs the microtasks after it: the
  // check phase of the same turn is the first place where ordinary JavaScript may run.
  readonly #fired: PollCallback = (status, ready) => {
    this.#delivery ??= setImmediate(() => {
      this.#delivery = undefined;
      // libuv stops a poll when it finds an error pending.
      if (status < 0) this.#restart();
      this.#onReady({
        readable: ready.readable || (status < 0 && this.#events.readable === true),
        writable: ready.writable || (status < 0 && this.#events.writable === true),
        disconnect: ready.disconnect,
        error: status < 0,
      });
    });
  };

  #restart(): void {
    checkPollable(this.fd);
    this.#poll.start(this.#events, this.#fired as unknown as DeclaredPollCallback);
  }

  get closed(): boolean {
    return this.#closed;
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    clearImmediate(this.#delivery);
    watches.delete(this.fd);
    if (watches.size === 0) process.off('exit', closeAll);
    this.#poll.close();
  }

  ref(): void {
    if (!this.#closed) this.#poll.ref();
  }

  unref(): void {
    if (!this.#closed) this.#poll.unref();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

const EPOLL_CLOEXEC = 0x80000;
const EPOLL_CTL_ADD = 1;
const [SYS_EPOLL_CREATE1, SYS_EPOLL_CTL] =
  process.arch === 'arm64' ? ([20, 21] as const) : ([291, 233] as const);
// struct epoll_event: no events, no data; 12 bytes on x64, 16 elsewhere
const noEvents = new Uint8Array(16);

/** Asks the kernel, as libuv will: it knows kinds that fstat does not tell apart (/dev/null). */
function checkPollable(fd: number): void {
  checkFd(fd, 'poll');
  const epoll = succeeded(
    libc.syscall(SYS_EPOLL_CREATE1, EPOLL_CLOEXEC, 0, 0, 0, 0, 0),
    'epoll_create1',
  );
  try {
    // A closed descriptor's number may have gone to the epoll descriptor itself.
    if (fd === epoll) throw new SystemError('epoll_ctl', EBADF);
    succeeded(
      libc.syscall(SYS_EPOLL_CTL, epoll, EPOLL_CTL_ADD, fd, addressOf(noEvents), 0, 0),
      'epoll_ctl',
    );
  } catch (error) {
    if (!(error instanceof SystemError)) throw error;
    if (error.errno === EBADF) throw new SystemError('poll', EBADF, `descriptor ${fd} is not open`);
    if (error.errno === EPERM)
      throw new SystemError('poll', EPERM, `descriptor ${fd} is of a kind without readiness`);
    throw error;
  } finally {
    libc.close(epoll);
  }
}
