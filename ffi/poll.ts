/**
 * Readiness of descriptors on Node's own event loop, without a thread. Each thread has one epoll
 * descriptor, which holds all that are watched; the event loop watches that one. So watching
 * anything, and changing what it is watched for, needs no new descriptor after the first time.
 */
import dgram from 'node:dgram';
import { isMainThread } from 'node:worker_threads';
import koffi from 'koffi';
import { checkFd, closeFd, isShortage, libc, SystemError, succeeded } from './libc.ts';
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
  /**
   * Watches for other events from now on, which needs no descriptor. A watch for no events calls
   * nothing and does not keep the process alive.
   */
  change(events: WatchedEvents): void;
  /** Makes the watch keep the process alive, as it does from the start. */
  ref(): void;
  /** Lets the process end although the watch is open. */
  unref(): void;
}

/**
 * Calls `onReady` once per turn of the event loop while `fd` is ready for what `events` names.
 * It is level-triggered: it goes on until the descriptor has been read or written, or the watch is
 * closed. What `onReady` throws becomes an uncaught exception, as in a timer.
 *
 * The descriptor becomes non-blocking. A worker thread may be terminated while watches are open:
 * `onReady` is not called after that.
 *
 * @throws SystemError EBADF if `fd` is not open, EPERM if it is of a kind without readiness
 * (a regular file, a directory, /dev/null), EEXIST while another watch of it is open, EINVAL if over
 * 500 copies of it are watched, EMFILE if this is the first watch of the thread and no descriptor is
 * left for its epoll
 * @throws TypeError if `events` names nothing
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
  return new EpollWatch(fd, events, onReady);
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
const EINVAL = 22;

/** All open watches of this thread, by their descriptors. */
const watches = new Map<number, EpollWatch>();

class EpollWatch implements FdWatch {
  readonly fd: number;
  readonly #onReady: (readiness: Readiness) => void;
  #events: WatchedEvents;
  /** What was found in this turn of the loop, to be delivered in its check phase. */
  #found = 0;
  #delivery: NodeJS.Immediate | undefined;
  #isReferenced = true;
  #keepsAlive = false;
  #closed = false;

  constructor(fd: number, events: WatchedEvents, onReady: (readiness: Readiness) => void) {
    this.fd = fd;
    this.#events = { ...events };
    this.#onReady = onReady;
    addToEpoll(fd, maskOf(events));
    watches.set(fd, this);
    this.#updateReference();
  }

  /** Takes what epoll has found. Neither throws nor runs anybody's code. */
  found(bits: number): void {
    this.#found = bits;
    // Each watch has its own immediate, so that the promises of one go on before the next is called.
    this.#delivery ??= setImmediate(this.#deliver);
  }

  readonly #deliver = (): void => {
    this.#delivery = undefined;
    const { readable, writable, disconnect } = this.#events;
    const bits = this.#found;
    const error = (bits & EPOLLERR) !== 0;
    // After an error or a bare hang-up neither a read nor a write would block.
    const everything = error || (bits & (EPOLLIN | EPOLLOUT | EPOLLRDHUP)) === 0;
    const ready = {
      readable: readable === true && (everything || (bits & EPOLLIN) !== 0),
      writable: writable === true && (everything || (bits & EPOLLOUT) !== 0),
      disconnect: disconnect === true && !error && (everything || (bits & EPOLLRDHUP) !== 0),
      error,
    };
    // What it is watched for may have changed since, to nothing as well.
    if (maskOf(this.#events) === PAUSED) return;
    if (ready.readable || ready.writable || ready.disconnect || error) this.#onReady(ready);
  };

  change(events: WatchedEvents): void {
    if (this.#closed) return;
    this.#events = { ...events };
    epollControl(EPOLL_CTL_MOD, this.fd, maskOf(events));
    this.#updateReference();
  }

  get closed(): boolean {
    return this.#closed;
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    clearImmediate(this.#delivery);
    watches.delete(this.fd);
    // It fails where the descriptor was closed before: then the kernel has forgotten it already.
    epollCtl(EPOLL_CTL_DEL, this.fd, 0);
    this.#updateReference();
  }

  ref(): void {
    this.#isReferenced = true;
    this.#updateReference();
  }

  unref(): void {
    this.#isReferenced = false;
    this.#updateReference();
  }

  #updateReference(): void {
    const keepsAlive = this.#isReferenced && !this.#closed && maskOf(this.#events) !== PAUSED;
    if (keepsAlive === this.#keepsAlive) return;
    this.#keepsAlive = keepsAlive;
    if (keepsAlive && keepingAlive++ === 0) loopHandle?.ref();
    if (!keepsAlive && --keepingAlive === 0) loopHandle?.unref();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

const EPOLL_CLOEXEC = 0x80000;
const EPOLL_CTL_ADD = 1;
const EPOLL_CTL_DEL = 2;
const EPOLL_CTL_MOD = 3;
const EPOLLIN = 0x1;
const EPOLLOUT = 0x4;
const EPOLLERR = 0x8;
const EPOLLRDHUP = 0x2000;
/** Hang-ups and errors are always reported: with this, once at most. */
const PAUSED = 1 << 30; // EPOLLONESHOT

const maskOf = ({ readable, writable, disconnect }: WatchedEvents): number =>
  (readable ? EPOLLIN : 0) | (writable ? EPOLLOUT : 0) | (disconnect ? EPOLLRDHUP : 0) || PAUSED;

// struct epoll_event: 12 bytes on x64, where it is packed, 16 elsewhere. The data are the descriptor.
const [EVENT_WORDS, FD_WORD] = process.arch === 'x64' ? ([3, 1] as const) : ([4, 2] as const);
const MAX_EVENTS = 1024;
const eventWords = new Int32Array(MAX_EVENTS * EVENT_WORDS);
const eventAddress = addressOf(eventWords);
const oneEvent = new Int32Array(EVENT_WORDS);
const oneEventAddress = addressOf(oneEvent);

/** The thread's epoll descriptor on its event loop. */
interface LoopHandle {
  readonly epoll: number;
  ref(): void;
  unref(): void;
}

let loopHandle: LoopHandle | undefined;
/** How many watches keep the process alive. */
let keepingAlive = 0;

/** Hands out what is ready; what is too much for once is still ready in the next turn. */
function takeReady(): void {
  if (!loopHandle) return;
  const count = libc.epoll_wait(loopHandle.epoll, eventAddress, MAX_EVENTS, 0);
  for (let at = 0; at < count * EVENT_WORDS; at += EVENT_WORDS)
    watches.get(eventWords[at + FD_WORD] as number)?.found(eventWords[at] as number);
}

function epollCtl(operation: number, fd: number, mask: number): number {
  loopHandle ??= isMainThread ? onMainLoop() : onWorkerLoop();
  oneEvent[0] = mask;
  oneEvent[FD_WORD] = fd;
  return libc.epoll_ctl(loopHandle.epoll, operation, fd, oneEventAddress);
}

const epollControl = (operation: number, fd: number, mask: number): void => {
  succeeded(epollCtl(operation, fd, mask), 'epoll_ctl');
};

function addToEpoll(fd: number, mask: number): void {
  checkFd(fd, 'poll');
  try {
    epollControl(EPOLL_CTL_ADD, fd, mask);
  } catch (error) {
    if (!(error instanceof SystemError) || error.syscall !== 'epoll_ctl') throw error;
    // A closed descriptor's number may have gone to the epoll descriptor itself.
    if (error.errno === EBADF || fd === loopHandle?.epoll)
      throw new SystemError('poll', EBADF, `descriptor ${fd} is not open`);
    if (error.errno === EPERM)
      throw new SystemError('poll', EPERM, `descriptor ${fd} is of a kind without readiness`);
    if (error.errno === EINVAL)
      throw new SystemError('poll', EINVAL, `over ${MAX_WATCHES_OF_ONE} copies of it are watched`);
    throw error;
  }
  libc.fcntl(fd, F_SETFL, libc.fcntl(fd, F_GETFL, 0) | O_NONBLOCK);
}

const F_GETFL = 3;
const F_SETFL = 4;
const O_NONBLOCK = 0x800;

/** The kernel's limit for one open file, whose copies have descriptors of their own. */
const MAX_WATCHES_OF_ONE = 500;

const createEpoll = (): number => succeeded(libc.epoll_create1(EPOLL_CLOEXEC), 'epoll_create1');

/**
 * The quickest way, which is for the main thread alone: koffi aborts the process when its callback
 * cannot run JavaScript, as it cannot from the moment on in which another thread terminates this
 * one. The main thread is told of its end first.
 */
function onMainLoop(): LoopHandle {
  const epoll = createEpoll();
  // What is thrown in there would be lost, and nothing runs the microtasks after it.
  const handle = koffi.node.poll(epoll, { readable: true }, takeReady);
  handle.unref();
  let isOpen = true;
  process.on('exit', () => {
    // koffi crashes when a handle is used after its close.
    isOpen = false;
    handle.close();
  });
  return {
    epoll,
    ref: () => isOpen && handle.ref(),
    unref: () => isOpen && handle.unref(),
  };
}

/** In a worker thread: the end of the thread may come without a word to its JavaScript. */
function onWorkerLoop(): LoopHandle {
  const epoll = createEpoll();
  try {
    return inDatagramSocket(epoll);
  } catch (error) {
    if (isShortage(error)) {
      libc.close(epoll);
      throw error;
    }
    // Sandboxes allow some families of sockets only.
    const timer = setInterval(takeReady, 1).unref();
    return { epoll, ref: () => timer.ref(), unref: () => timer.unref() };
  }
}

const AF_INET = 2;
const SOCK_DGRAM = 2;
const SOCK_CLOEXEC = 0x8_0000;
const O_CLOEXEC = 0x8_0000;

/**
 * One of Node's own handles gets the epoll descriptor: Node ends its callbacks, and closes it, when
 * the thread is terminated. Node has no handle for descriptors of every kind. So an unbound datagram
 * socket is opened, and its number is then given to the epoll. Whenever the epoll is readable, Node
 * cannot receive a datagram from it (ENOTSOCK). It reports that as an event and goes on.
 *
 * @throws SystemError if the process may have no such socket
 */
function inDatagramSocket(epoll: number): LoopHandle {
  const socket = dgram.createSocket('udp4');
  let fd = -1;
  try {
    fd = succeeded(libc.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), 'socket');
    socket.bind({ fd, exclusive: true });
  } catch (error) {
    socket.close();
    libc.close(fd);
    throw error;
  }
  socket.on('error', takeReady).unref();
  succeeded(libc.dup3(epoll, fd, O_CLOEXEC), 'dup3');
  closeFd(epoll);
  return { epoll: fd, ref: () => socket.ref(), unref: () => socket.unref() };
}
