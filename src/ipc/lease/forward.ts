import { discardFd, discardFds } from '../../../ffi/linux/close-fd.ts';
import { closeFd, duplicateFd, SystemError } from '../../../ffi/linux/libc.ts';
import { isGone, sendMessage, takeMessage } from '../../../ffi/linux/message.ts';
import { type FdWatch, watchFd } from '../../../ffi/linux/poll.ts';
import { processStartTime } from '../../../ffi/linux/process.ts';
import { isMessageSocket, peerCredentials, socketPair } from '../../../ffi/linux/socket.ts';
import { IpcError } from '../../errors.ts';
import { ownerOf, type Shareable } from '../shareable.ts';
import type { Lease } from './lease.ts';
import { PeerProcess } from './peer-process.ts';

/** One who has something of the other end by way of this process. */
export interface ForwardRequest {
  readonly lease: number;
  readonly pid: number;
  readonly startTime: number;
}

interface PendingForward extends ForwardRequest {
  readonly link: number;
}

/** What comes of what was asked. */
export interface ForwardHandle {
  /** Resolves when the other end keeps it, or is not there to. */
  readonly acknowledged: Promise<void>;
  /** To be called, once, when the third process has given it back, or did not get it. */
  release(): void;
}

/** How much the other end is asked to keep at a time. */
export const MAX_FORWARDS_IN_PROGRESS = 1024;

/** What the other end is asked to keep for others too: what would be too much waits for less. */
export class ForwardRequester {
  readonly #onChange: () => void;
  /** Each ends the wait for an answer. */
  readonly #pendingAcks = new Set<() => void>();
  #unsent: PendingForward[] = [];
  /** How much the other end has been asked to keep that is not over. */
  #sentCount = 0;
  #isEnded = false;

  /** @param onChange called when there is something to be told */
  constructor(onChange: () => void) {
    this.#onChange = onChange;
  }

  /**
   * Asks for one thing. The other end answers by the link, so that this does not wait for the values
   * that come before: they may be more than are taken meanwhile.
   *
   * @param ownerLink the other end's end of it, closed when it went out
   * @param recipientLink the end that the third process gets, which stays its caller's
   * @throws SystemError; the link is closed then, too
   */
  request(
    lease: number,
    pid: number,
    startTime: number,
    ownerLink: number,
    recipientLink: number,
  ): ForwardHandle {
    if (this.#isEnded) {
      closeFd(ownerLink);
      return { acknowledged: Promise.resolve(), release() {} };
    }
    const acknowledged = this.#awaitAck(ownerLink, recipientLink);
    const asked = { lease, pid, startTime, link: ownerLink };
    this.#unsent.push(asked);
    this.#onChange();
    return { acknowledged, release: () => this.#release(asked) };
  }

  /** What is to be told now: no more than go in one message. */
  take(): PendingForward[] {
    const taken = this.#unsent.splice(
      0,
      Math.min(MAX_REQUESTS_PER_MESSAGE, MAX_FORWARDS_IN_PROGRESS - this.#sentCount),
    );
    this.#sentCount += taken.length;
    return taken;
  }

  /** Takes back what was to be told in a message that could not be sent. */
  restore(taken: readonly PendingForward[]): void {
    this.#sentCount -= taken.length;
    this.#unsent.unshift(...taken);
  }

  /** Whether something of a lease is still to be asked for: it must not be given back before. */
  hasUnsent(lease: number): boolean {
    return this.#unsent.some((unsaid) => unsaid.lease === lease);
  }

  /** The other end answers no more. */
  end(): void {
    this.#isEnded = true;
    for (const { link } of this.#unsent.splice(0)) closeFd(link);
    for (const answered of this.#pendingAcks) answered();
  }

  #release(asked: PendingForward): void {
    const at = this.#unsent.indexOf(asked);
    if (at >= 0) {
      this.#unsent.splice(at, 1);
      closeFd(asked.link);
      return;
    }
    this.#sentCount -= 1;
    if (this.#unsent.length > 0) this.#onChange();
  }

  #awaitAck(ownerLink: number, recipientLink: number): Promise<void> {
    let resolve: () => void = () => {};
    const answer = new Promise<void>((resolved) => {
      resolve = resolved;
    });
    let duplicate: number | undefined;
    try {
      duplicate = duplicateFd(recipientLink);
      this.#watchForAck(duplicate, resolve);
      return answer;
    } catch (error) {
      closeFd(ownerLink);
      if (duplicate !== undefined) closeFd(duplicate);
      throw error;
    }
  }

  /** @param duplicate closed when the answer came, or none comes any more; not where this throws */
  #watchForAck(duplicate: number, resolve: () => void): void {
    const onAck = (): void => {
      this.#pendingAcks.delete(onAck);
      watch.close();
      consumeAck(duplicate);
      closeFd(duplicate);
      resolve();
    };
    const watch = watchFd(duplicate, { readable: true }, onAck);
    watch.unref();
    this.#pendingAcks.add(onAck);
  }
}

/** So that it does not go on to the third process. */
function consumeAck(fd: number): void {
  try {
    const message = takeMessage(fd);
    // Descriptors would be closed by a read that does not ask for them.
    if (typeof message === 'object') discardFds(message.fds);
  } catch {
    // It did not come, as the other end is gone, or ends without.
  }
}

/** Of one message. */
const MAX_REQUESTS_PER_MESSAGE = 64;

const ACK = Uint8Array.of(1);

/**
 * Refuses a descriptor that is not a link which the asking process has made: a byte is written to
 * it, which must not reach a file, a terminal or a connection to another service.
 *
 * @throws SystemError ENOTSOCK
 * @throws IpcError for any other socket
 */
function checkLink(link: number, requester: number): void {
  const refused = 'a descriptor came as a link to a process that memory was passed on to';
  if (!isMessageSocket(link))
    throw new IpcError(`${refused}, and is not a connected Unix socket of type SOCK_SEQPACKET`);
  const { pid } = peerCredentials(link);
  if (pid !== requester)
    throw new IpcError(
      `${refused}: it leads to process ${pid}, and process ${requester} has sent it`,
    );
}

/** Tells the process that asked, by the link, that something is kept. @throws SystemError */
function sendAck(link: number): void {
  try {
    sendMessage(link, ACK);
  } catch (error) {
    // The process that asked is gone, and so is the link: the watch finds that.
    if (!(error instanceof SystemError) || !isGone(error)) throw error;
  }
}

/**
 * Memory of this process that one who has it has passed on to another process: kept until that one
 * has closed it, or has ended, whatever becomes of the one between. That one has the other end of a
 * link, a pair of sockets, and closes it with what it got.
 */
export class ForwardedLease {
  readonly #lease: Lease;
  readonly #link: number;
  #process: PeerProcess | undefined;
  readonly #watch: FdWatch;
  readonly #graceMs: number;
  #stopWatching: (() => void) | undefined;
  readonly #onReleased: () => void;
  #isEnded = false;

  /**
   * @param lease of the one between, which has asked
   * @param link this process's end, which is this object's from now on, unless this throws
   * @param onReleased called when it is given back
   * @throws IpcError, SystemError for a link that is not of the process between
   */
  constructor(
    lease: Lease,
    { pid, startTime }: { readonly pid: number; readonly startTime: number },
    link: number,
    graceMs: number,
    onReleased: () => void,
  ) {
    checkLink(link, lease.holder.pid);
    this.#link = link;
    this.#graceMs = graceMs;
    this.#onReleased = onReleased;
    this.#watch = watchFd(link, { readable: true }, () => this.#onLinkClosed());
    this.#watch.unref();
    // It is asked by way of the one between.
    this.#lease = lease.forwardTo({ pid, name: `process ${pid}`, revoke: () => {} });
    try {
      this.#process = PeerProcess.fromIdentity(pid, startTime);
      this.#stopWatching = this.#process.onGone(() => this.#end());
      // Last, when nothing is left that may fail: the link is closed where the process is gone.
      if (this.#isEnded) this.#stopWatching();
      else sendAck(link);
    } catch (error) {
      this.#watch.close();
      this.#stopWatching?.();
      this.#lease.end();
      throw error;
    }
  }

  /** All ends of the others are closed: by their owner, or because that ends. */
  #onLinkClosed(): void {
    this.#watch.close();
    const isEnding = this.#process?.isExitObservable ? this.#process.isEnding : undefined;
    if (isEnding === undefined) setTimeout(() => this.#end(), this.#graceMs).unref();
    else if (!isEnding) this.#end();
  }

  #end(): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.#watch.close();
    discardFd(this.#link);
    // Not there yet where the process was gone from the beginning.
    this.#stopWatching?.();
    this.#lease.end();
    this.#onReleased();
  }
}

/** Who has lent an object to this process: it is asked before that is passed on. */
export interface OwnerConnection {
  readonly process: PeerProcess;
  /**
   * Has it keep the object for another process too.
   *
   * @param link the lender's end, which is the callee's from now on
   * @param ours the other process's, which stays the caller's
   */
  requestForward(pid: number, startTime: number, link: number, ours: number): ForwardHandle;
}

// On the object itself: a WeakMap with an entry for each would keep the collector busy.
const OWNER_CONNECTION = Symbol('lender');

interface WithOwnerConnection {
  [OWNER_CONNECTION]?: OwnerConnection;
}

/** Remembers who has lent what is open here. */
export function setOwnerConnection(object: object, connection: OwnerConnection): void {
  (object as WithOwnerConnection)[OWNER_CONNECTION] = connection;
}

const ownerConnectionOf = (object: Shareable): OwnerConnection | undefined =>
  (ownerOf(object) as WithOwnerConnection)[OWNER_CONNECTION];

/** Objects of others that go to a third process. */
export interface ForwardedObjects {
  /** Which of the objects they are. */
  readonly indices: readonly number[];
  /** Of the link of each to its maker the end for the third process: whoever calls closes these. */
  readonly links: readonly number[];
  /** When all lenders keep it; undefined where there are none. */
  readonly acknowledged: Promise<unknown> | undefined;
  /** Of each: to be called, once, when the third process has given it back, or did not get it. */
  readonly releases: readonly (() => void)[];
}

const nothingForwarded: ForwardedObjects = {
  indices: [],
  links: [],
  acknowledged: undefined,
  releases: [],
};

/** Asks the lenders of what goes to a process. @throws SystemError */
export function forwardObjects(objects: readonly Shareable[], to: PeerProcess): ForwardedObjects {
  if (!objects.some(ownerConnectionOf)) return nothingForwarded;
  const owners = objects.map(ownerConnectionOf);
  // What goes back to its maker is its own.
  const indices = owners.flatMap((lender, at) =>
    lender && !isSameProcess(lender.process, to) ? [at] : [],
  );
  if (indices.length === 0) return nothingForwarded;
  const startTime = processStartTime(to.pid) ?? 0;
  const links: number[] = [];
  const handles: ForwardHandle[] = [];
  try {
    for (const at of indices) {
      const [theirs, ours] = socketPair();
      links.push(ours);
      handles.push((owners[at] as OwnerConnection).requestForward(to.pid, startTime, theirs, ours));
    }
  } catch (error) {
    links.forEach(closeFd);
    for (const { release } of handles) release();
    throw error;
  }
  const acknowledged = Promise.all(handles.map(({ acknowledged }) => acknowledged));
  return { indices, links, acknowledged, releases: handles.map(({ release }) => release) };
}

/** All processes of other pid namespaces have the pid 0 here: only one connection tells them apart. */
const isSameProcess = (a: PeerProcess, b: PeerProcess): boolean =>
  a === b || (a.pid > 0 && a.pid === b.pid);
