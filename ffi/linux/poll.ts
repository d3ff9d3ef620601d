/**
 * Readiness of descriptors on Node's event loop, without a thread. On the main thread the loop
 * watches each descriptor itself. A worker thread has one epoll descriptor for all of its watches,
 * and the loop watches that one. So opening or changing a watch needs no new descriptor after the
 * first.
 */

import { koffi } from '../koffi.ts';
import { addressOf, withAddress } from '../native.ts';
import { isMainThread } from '../thread.ts';
import type { Address } from '../types.ts';
import {
  checkFd,
  closeFd,
  F_GETFL,
  F_SETFL,
  isShortage,
  libc,
  SystemError,
  succeeded,
} from './libc.ts';

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
  /** Ends the watch: `onReady` is not called again. May be called twice. */
  close(): void;
  /**
   * Watches for other events from now on. Needs no descriptor. A watch for no events calls nothing
   * and does not keep the process alive.
   */
  change(events: WatchedEvents): void;
  /** Makes the watch keep the process alive, which is the default. */
  ref(): void;
  /** Lets the process end although the watch is open. */
  unref(): void;
}

/**
 * The runtime, as `Bun 1.4.5`, if it is one that cannot watch descriptors; undefined in Node. koffi
 * watches through libuv. Bun lacks that part of libuv and would abort the process. In Deno no event
 * ever arrives.
 */
export function runtimeWithoutWatches(): string | undefined {
  const { bun, deno } = process.versions;
  if (bun !== undefined) return `Bun ${bun}`;
  return deno === undefined ? undefined : `Deno ${deno}`;
}

/**
 * Calls `onReady` once per turn of the event loop while `fd` is ready for one of `events`.
 * It is level-triggered: the calls repeat until the descriptor has been read or written, or the watch
 * is closed. An error that `onReady` throws becomes an uncaught exception, as in a timer.
 *
 * The descriptor becomes non-blocking. A worker thread may be terminated while watches are open:
 * `onReady` is not called after that.
 *
 * @throws SystemError EBADF if `fd` is not open, EPERM if its kind has no readiness (a regular
 * file, a directory, /dev/null), EEXIST while another watch of it is open, EINVAL if a worker
 * thread watches over 500 copies of it, EMFILE if the thread has no descriptor left for its epoll
 * at the first watch, ENOSYS in Bun and Deno
 * @param options `urgent`: {@link serveUrgentWatches} calls `onReady`, too
 * @throws TypeError if `events` names nothing
 */
export function watchFd(
  fd: number,
  events: WatchedEvents,
  onReady: (readiness: Readiness) => void,
  options: { readonly urgent?: boolean } = {},
): FdWatch {
  if (!(events.readable || events.writable || events.disconnect))
    throw new TypeError('a watch needs readable, writable or disconnect');
  if (typeof onReady !== 'function') throw new TypeError('a watch needs a function to call');
  const runtime = runtimeWithoutWatches();
  if (runtime !== undefined)
    throw new SystemError('poll', ENOSYS, `${runtime} cannot watch descriptors; Node can`);
  if (watches.has(fd)) throw new SystemError('poll', EEXIST, `descriptor ${fd} is already watched`);
  return new Watch(fd, events, onReady, options.urgent === true);
}

/**
 * Calls the `onReady` of each urgent watch of this thread whose descriptor is ready, now: for a
 * caller that keeps the event loop from turning.
 *
 * @param timeoutMs for how long to sleep, at most, if none is ready
 */
export function serveUrgentWatches(timeoutMs: number): void {
  const served = [...urgentWatches];
  if (served.length === 0) {
    libc.poll(0 as Address, 0, timeoutMs);
    return;
  }
  // struct pollfd: the descriptor, then two 16-bit masks: what to report, and what was found.
  const entries = new Int32Array(2 * served.length);
  for (const [at, watch] of served.entries()) {
    entries[2 * at] = watch.fd;
    entries[2 * at + 1] = watch.pollMask;
  }
  const count = withAddress(entries, (address) => libc.poll(address, served.length, timeoutMs));
  if (count <= 0) return;
  for (const [at, watch] of served.entries()) {
    const found = (entries[2 * at + 1] as number) >>> 16;
    // An earlier one may have closed it.
    if (found !== 0 && !watch.closed) watch.serve(found);
  }
}

/**
 * Resolves once a read of `fd` would not block: data, the end or an error is pending. The pending
 * promise keeps the process alive and counts as a watch of `fd`.
 *
 * @throws SystemError as {@link watchFd}
 * @throws the signal's reason if it aborts first
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
const ENOSYS = 38;

/** All open watches of this thread by descriptor. Keeps koffi's handles from being collected. */
const watches = new Map<number, Watch>();
/** Those whose news must not wait for the event loop. */
const urgentWatches = new Set<Watch>();

/** What detects that a descriptor is ready. */
interface ReadinessSource {
  /** @param mask PAUSED for nothing */
  change(mask: number): void;
  /** Resumes after an error was reported. @throws SystemError if the descriptor is closed */
  resume(mask: number): void;
  ref(): void;
  unref(): void;
  close(): void;
}

class Watch implements FdWatch {
  readonly fd: number;
  readonly #onReady: (readiness: Readiness) => void;
  readonly #source: ReadinessSource;
  #events: WatchedEvents;
  /** The readiness found in this turn of the loop. It is delivered in the check phase. */
  #readyBits = 0;
  #delivery: NodeJS.Immediate | undefined;
  #closed = false;

  constructor(
    fd: number,
    events: WatchedEvents,
    onReady: (readiness: Readiness) => void,
    isUrgent: boolean,
  ) {
    this.fd = fd;
    this.#events = { ...events };
    this.#onReady = onReady;
    const open = isMainThread() ? openLibuvSource : openEpollSource;
    this.#source = open(fd, maskOf(events), this.recordReadiness);
    libc.fcntl(fd, F_SETFL, libc.fcntl(fd, F_GETFL, 0) | O_NONBLOCK);
    watches.set(fd, this);
    if (isUrgent) urgentWatches.add(this);
  }

  /** What poll(2) is asked for. */
  get pollMask(): number {
    return maskOf(this.#events) & (EPOLLIN | EPOLLOUT | EPOLLRDHUP);
  }

  /** Delivers readiness now, in place of the turn of the loop that would have. */
  serve(bits: number): void {
    clearImmediate(this.#delivery);
    this.#readyBits = bits;
    this.#deliver();
  }

  /** Records readiness for later delivery. Neither throws nor runs user code. */
  readonly recordReadiness = (bits: number): void => {
    this.#readyBits = bits;
    // Each watch has its own immediate, so that its promises settle before the next watch is called.
    this.#delivery ??= setImmediate(this.#deliver);
  };

  readonly #deliver = (): void => {
    this.#delivery = undefined;
    const { readable, writable, disconnect } = this.#events;
    const bits = this.#readyBits;
    const error = (bits & EPOLLERR) !== 0;
    // The watched events may have changed since, even to none.
    const mask = maskOf(this.#events);
    if (mask === NO_EVENTS) return;
    if (error) this.#source.resume(mask);
    // After an error or a bare hang-up neither a read nor a write would block.
    const everything = error || (bits & (EPOLLIN | EPOLLOUT | EPOLLRDHUP)) === 0;
    const ready = {
      readable: readable === true && (everything || (bits & EPOLLIN) !== 0),
      writable: writable === true && (everything || (bits & EPOLLOUT) !== 0),
      disconnect: disconnect === true && !error && (everything || (bits & EPOLLRDHUP) !== 0),
      error,
    };
    if (ready.readable || ready.writable || ready.disconnect || error) this.#onReady(ready);
  };

  change(events: WatchedEvents): void {
    if (this.#closed) return;
    this.#events = { ...events };
    this.#source.change(maskOf(events));
  }

  get closed(): boolean {
    return this.#closed;
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    clearImmediate(this.#delivery);
    watches.delete(this.fd);
    urgentWatches.delete(this);
    this.#source.close();
  }

  ref(): void {
    if (!this.#closed) this.#source.ref();
  }

  unref(): void {
    if (!this.#closed) this.#source.unref();
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
/** epoll always reports hang-ups and errors. With this flag, at most once. */
const NO_EVENTS = 1 << 30; // EPOLLONESHOT

const maskOf = ({ readable, writable, disconnect }: WatchedEvents): number =>
  (readable ? EPOLLIN : 0) | (writable ? EPOLLOUT : 0) | (disconnect ? EPOLLRDHUP : 0) || NO_EVENTS;

// struct epoll_event: 12 bytes on x64, where it is packed, 16 elsewhere. Its data is the descriptor.
const [EVENT_WORDS, FD_WORD] = process.arch === 'x64' ? ([3, 1] as const) : ([4, 2] as const);
const MAX_EVENTS = 1024;
const eventWords = new Int32Array(MAX_EVENTS * EVENT_WORDS);
let eventAddress: Address | undefined;
const oneEvent = new Int32Array(EVENT_WORDS);
let oneEventAddress: Address | undefined;

const createEpoll = (): number => succeeded(libc.epoll_create1(EPOLL_CLOEXEC), 'epoll_create1');

function epollCtl(epoll: number, operation: number, fd: number, mask: number): number {
  oneEventAddress ??= addressOf(oneEvent);
  oneEvent[0] = mask;
  oneEvent[FD_WORD] = fd;
  return libc.epoll_ctl(epoll, operation, fd, oneEventAddress);
}

/** @throws SystemError as {@link watchFd} */
function addToEpoll(epoll: number, fd: number, mask: number): void {
  checkFd(fd, 'poll');
  // The number of a closed descriptor may have been reused for the epoll descriptor.
  if (fd === epoll) throw new SystemError('poll', EBADF, `descriptor ${fd} is not open`);
  try {
    succeeded(epollCtl(epoll, EPOLL_CTL_ADD, fd, mask), 'epoll_ctl');
  } catch (error) {
    if (!(error instanceof SystemError)) throw error;
    if (error.errno === EBADF) throw new SystemError('poll', EBADF, `descriptor ${fd} is not open`);
    if (error.errno === EPERM)
      throw new SystemError('poll', EPERM, `descriptor ${fd} is of a kind that cannot be watched`);
    if (error.errno === EINVAL)
      throw new SystemError(
        'poll',
        EINVAL,
        `more than ${MAX_WATCHES_PER_FILE} copies of descriptor ${fd} are watched`,
      );
    throw error;
  }
}

const O_NONBLOCK = 0x800;

/** The kernel's limit of watches for one open file and its duplicated descriptors. */
const MAX_WATCHES_PER_FILE = 500;

/** An epoll that only tests whether the kernel can watch a descriptor. */
let probeEpoll: number | undefined;

/** libuv aborts the process for a descriptor that it cannot watch. @throws SystemError */
function checkPollable(fd: number): void {
  probeEpoll ??= createEpoll();
  addToEpoll(probeEpoll, fd, NO_EVENTS);
  epollCtl(probeEpoll, EPOLL_CTL_DEL, fd, 0);
}

/** The callback as koffi calls it. koffi's declarations leave out the status. */
type PollCallback = (status: number, ready: Omit<Readiness, 'error'>) => void;
type DeclaredPollCallback = Parameters<ReturnType<typeof koffi>['node']['poll']>[1];

/**
 * Watches through koffi's libuv handle: the fastest way, for the main thread only. koffi aborts the
 * process if its callback cannot run JavaScript, which happens once another thread terminates this
 * one. The main thread gets an exit event before its end.
 */
function openLibuvSource(fd: number, mask: number, found: (bits: number) => void): ReadinessSource {
  checkPollable(fd);
  // An error thrown in this callback would be lost, and no microtasks run after it.
  const fired: PollCallback = (status, ready) =>
    found(
      status < 0
        ? EPOLLERR
        : (ready.readable ? EPOLLIN : 0) |
            (ready.writable ? EPOLLOUT : 0) |
            (ready.disconnect ? EPOLLRDHUP : 0),
    );
  const callback = fired as unknown as DeclaredPollCallback;
  const handle = koffi().node.poll(fd, eventsOf(mask), callback);
  if (watches.size === 0) process.on('exit', closeAllWatches);
  const change = (to: number): void => {
    if (to === NO_EVENTS) handle.stop();
    else handle.start(eventsOf(to), callback);
  };
  return {
    change,
    // libuv stops watching after an error.
    resume(to) {
      checkPollable(fd);
      change(to);
    },
    ref: () => handle.ref(),
    unref: () => handle.unref(),
    // koffi crashes if a handle is used after this.
    close() {
      handle.close();
      if (watches.size === 0) process.off('exit', closeAllWatches);
    },
  };
}

const eventsOf = (mask: number): WatchedEvents => ({
  readable: (mask & EPOLLIN) !== 0,
  writable: (mask & EPOLLOUT) !== 0,
  disconnect: (mask & EPOLLRDHUP) !== 0,
});

// The loop turns once more while Node frees its environment. koffi would then call JavaScript, which
// can no longer run.
const closeAllWatches = (): void => {
  for (const watch of [...watches.values()]) watch.close();
};

/** The epoll descriptor of a worker thread on its event loop. */
interface LoopHandle {
  readonly epoll: number;
  ref(): void;
  unref(): void;
}

let loopHandle: LoopHandle | undefined;
/** The number of watches that keep the thread alive. */
let referencedWatches = 0;

/** Delivers readiness to the watches. Events beyond the buffer are reported in the next turn. */
function dispatchReady(): void {
  if (!loopHandle) return;
  eventAddress ??= addressOf(eventWords);
  const count = libc.epoll_wait(loopHandle.epoll, eventAddress, MAX_EVENTS, 0);
  for (let at = 0; at < count * EVENT_WORDS; at += EVENT_WORDS)
    watches.get(eventWords[at + FD_WORD] as number)?.recordReadiness(eventWords[at] as number);
}

function openEpollSource(fd: number, mask: number): ReadinessSource {
  loopHandle ??= openWorkerLoopHandle();
  const { epoll } = loopHandle;
  addToEpoll(epoll, fd, mask);
  let isReferenced = true;
  let isActive = true;
  let keepsAlive = false;
  const update = (): void => {
    if (keepsAlive === (isReferenced && isActive)) return;
    keepsAlive = !keepsAlive;
    if (keepsAlive && referencedWatches++ === 0) loopHandle?.ref();
    if (!keepsAlive && --referencedWatches === 0) loopHandle?.unref();
  };
  const change = (to: number): void => {
    succeeded(epollCtl(epoll, EPOLL_CTL_MOD, fd, to), 'epoll_ctl');
    isActive = to !== NO_EVENTS;
    update();
  };
  const reference = (to: boolean): void => {
    isReferenced = to;
    update();
  };
  update();
  return {
    change,
    // An error does not end the watch.
    resume() {},
    ref: () => reference(true),
    unref: () => reference(false),
    close() {
      // Fails if the descriptor was closed before: the kernel has removed it then.
      epollCtl(epoll, EPOLL_CTL_DEL, fd, 0);
      isActive = false;
      update();
    },
  };
}

/** Opens the epoll of a worker thread, which may be terminated without notice to its JavaScript. */
function openWorkerLoopHandle(): LoopHandle {
  const epoll = createEpoll();
  try {
    return hostEpollInSocket(epoll);
  } catch (error) {
    if (isShortage(error)) {
      libc.close(epoll);
      throw error;
    }
    // Sandboxes may forbid such sockets: poll with a timer.
    const timer = setInterval(dispatchReady, 1).unref();
    return { epoll, ref: () => timer.ref(), unref: () => timer.unref() };
  }
}

const AF_INET = 2;
const SOCK_DGRAM = 2;
const SOCK_CLOEXEC = 0x8_0000;
const O_CLOEXEC = 0x8_0000;

/**
 * Lets one of Node's own handles watch the epoll descriptor: Node closes it, without further
 * callbacks, when the thread is terminated. Node has no handle for arbitrary descriptors. So this
 * opens an unbound datagram socket and replaces its descriptor by the epoll (`dup3`). When the
 * epoll is readable, Node fails to receive a datagram (ENOTSOCK), emits an error event and
 * continues.
 *
 * @throws SystemError if the process may not create such a socket
 */
function hostEpollInSocket(epoll: number): LoopHandle {
  // Only worker threads need the module: the import of cuffi does not wait for it.
  const socket = process.getBuiltinModule('node:dgram').createSocket('udp4');
  let fd = -1;
  try {
    fd = succeeded(libc.socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), 'socket');
    socket.bind({ fd, exclusive: true });
  } catch (error) {
    socket.close();
    libc.close(fd);
    throw error;
  }
  socket.on('error', dispatchReady).unref();
  succeeded(libc.dup3(epoll, fd, O_CLOEXEC), 'dup3');
  closeFd(epoll);
  return { epoll: fd, ref: () => socket.ref(), unref: () => socket.unref() };
}
