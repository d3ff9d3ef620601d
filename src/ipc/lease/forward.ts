import { discardFd, discardFds } from '../../../ffi/linux/close-fd.ts';
import { closeFd, duplicateFd, SystemError } from '../../../ffi/linux/libc.ts';
import { isGone, sendMessage, takeMessage } from '../../../ffi/linux/message.ts';
import { type FdWatch, watchFd } from '../../../ffi/linux/poll.ts';
import { processStartTime } from '../../../ffi/linux/process.ts';
import { isMessageSocket, peerCredentials, socketPair } from '../../../ffi/linux/socket.ts';
import { IpcError } from '../../errors.ts';
import type { Shareable } from '../sharing/kinds.ts';
import type { ForwardRequest } from '../wire/control-block.ts';
import type { Lease } from './export-table.ts';
import { type ForwardHandle, type OwnerConnection, ownerConnectionOf } from './import-table.ts';
import { PeerProcess } from './peer-process.ts';

/** The objects of a value that belong to other processes. */
export interface ForwardedObjects {
  /** Their indices in the list of objects. */
  readonly indices: readonly number[];
  /** For each, the third process's end of the link to the owner. The caller closes them. */
  readonly links: readonly number[];
  /** Resolves when all owners have acknowledged. Undefined if nothing is forwarded. */
  readonly acknowledged: Promise<unknown> | undefined;
  /**
   * For each, a function to call once, when the third process has released the object or did not
   * get it.
   */
  readonly releases: readonly (() => void)[];
}

/**
 * Asks the owners of objects that are sent to a process to keep them for it. @throws SystemError
 */
export function forwardObjects(objects: readonly Shareable[], to: PeerProcess): ForwardedObjects {
  if (!objects.some(ownerConnectionOf)) return nothingForwarded;
  const owners = objects.map(ownerConnectionOf);
  // Objects that return to their owner need no request.
  const indices = owners.flatMap((owner, at) =>
    owner && !isSameProcess(owner.process, to) ? [at] : [],
  );
  if (indices.length === 0) return nothingForwarded;
  const startTime = processStartTime(to.pid) ?? 0;
  const links: number[] = [];
  const handles: ForwardHandle[] = [];
  try {
    for (const at of indices) {
      const [ownerLink, recipientLink] = socketPair();
      links.push(recipientLink);
      const owner = owners[at] as OwnerConnection;
      handles.push(owner.requestForward(to.pid, startTime, ownerLink, recipientLink));
    }
  } catch (error) {
    links.forEach(closeFd);
    for (const { release } of handles) release();
    throw error;
  }
  const acknowledged = Promise.all(handles.map(({ acknowledged }) => acknowledged));
  return { indices, links, acknowledged, releases: handles.map(({ release }) => release) };
}

const nothingForwarded: ForwardedObjects = {
  indices: [],
  links: [],
  acknowledged: undefined,
  releases: [],
};

/**
 * Processes of other pid namespaces all have the pid 0 here, so only the connection identifies
 * them.
 */
const isSameProcess = (a: PeerProcess, b: PeerProcess): boolean =>
  a === b || (a.pid > 0 && a.pid === b.pid);

// ---- Requests to the owner ----

/** The most requests that an owner has at a time. */
export const MAX_FORWARDS_IN_PROGRESS = 1024;

/** The most forward requests of one message. */
const MAX_REQUESTS_PER_MESSAGE = 64;

/**
 * Asks the peer to keep its objects for third processes. Requests above the limit wait for others
 * to end.
 */
export class ForwardRequester {
  readonly #onChange: () => void;
  /** Each function ends the wait for one acknowledgement. */
  readonly #pendingAcks = new Set<() => void>();
  #unsent: PendingForward[] = [];
  /** How many sent requests have not ended. */
  #sentCount = 0;
  #isEnded = false;

  /** @param onChange called when there is something to send */
  constructor(onChange: () => void) {
    this.#onChange = onChange;
  }

  /**
   * Queues one request. The acknowledgement comes through the link, so it does not wait for the
   * values sent before: those may be more than this process takes meanwhile.
   *
   * @param ownerLink the owner's end of the link, closed once it is sent
   * @param recipientLink the third process's end, which remains the caller's
   * @throws SystemError; then `ownerLink` is closed, too
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
    const request = { lease, pid, startTime, link: ownerLink };
    this.#unsent.push(request);
    this.#onChange();
    return { acknowledged, release: () => this.#release(request) };
  }

  /** Takes the requests to send now, at most as many as fit in one message. */
  take(): PendingForward[] {
    const taken = this.#unsent.splice(
      0,
      Math.min(MAX_REQUESTS_PER_MESSAGE, MAX_FORWARDS_IN_PROGRESS - this.#sentCount),
    );
    this.#sentCount += taken.length;
    return taken;
  }

  /** Puts back the requests of a message that could not be sent. */
  restore(taken: readonly PendingForward[]): void {
    this.#sentCount -= taken.length;
    this.#unsent.unshift(...taken);
  }

  /** Whether a request for a lease is not sent yet. Until then the lease must not be released. */
  hasUnsent(lease: number): boolean {
    return this.#unsent.some((request) => request.lease === lease);
  }

  /** Ends all waits, as no acknowledgement comes after the connection. */
  end(): void {
    this.#isEnded = true;
    for (const { link } of this.#unsent.splice(0)) closeFd(link);
    for (const answered of this.#pendingAcks) answered();
  }

  #release(request: PendingForward): void {
    const at = this.#unsent.indexOf(request);
    if (at >= 0) {
      this.#unsent.splice(at, 1);
      closeFd(request.link);
      return;
    }
    this.#sentCount -= 1;
    if (this.#unsent.length > 0) this.#onChange();
  }

  #awaitAck(ownerLink: number, recipientLink: number): Promise<void> {
    let resolve: () => void = () => {};
    const acknowledged = new Promise<void>((resolved) => {
      resolve = resolved;
    });
    let duplicate: number | undefined;
    try {
      duplicate = duplicateFd(recipientLink);
      this.#watchForAck(duplicate, resolve);
      return acknowledged;
    } catch (error) {
      closeFd(ownerLink);
      if (duplicate !== undefined) closeFd(duplicate);
      throw error;
    }
  }

  /**
   * @param duplicate closed after the acknowledgement or the end of the wait, but not if this
   * throws
   */
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

interface PendingForward extends ForwardRequest {
  readonly link: number;
}

/** Reads the acknowledgement, so that the third process does not get it. */
function consumeAck(fd: number): void {
  try {
    const message = takeMessage(fd);
    // A read that does not ask for descriptors would lose them.
    if (typeof message === 'object') discardFds(message.fds);
  } catch {
    // No acknowledgement came: the owner is gone or closed the link without acknowledging.
  }
}

// ---- Leases at the owner ----

/**
 * An object of this process that a peer forwarded to a third process. It is kept until that process
 * closes it or exits, even if the forwarding process exits first. The third process holds the other
 * end of the link, a socket pair, and closes it together with the object.
 */
export class ForwardedLease {
  readonly #lease: Lease;
  readonly #link: number;
  #process: PeerProcess | undefined;
  readonly #watch: FdWatch;
  readonly #graceMs: number;
  #stopWatching: (() => void) | undefined;
  #graceTimer: NodeJS.Timeout | undefined;
  readonly #onReleased: () => void;
  #isEnded = false;

  /**
   * @param lease the lease of the forwarding process
   * @param link this process's end of the link. This object owns it from now on, unless this throws
   * @param onReleased called when the third process has released the object
   * @throws IpcError, SystemError for a link that the forwarding process did not make
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
    // Revocation reaches the third process through the forwarding one.
    this.#lease = lease.forwardTo({ pid, name: `process ${pid}`, revoke: () => {} });
    try {
      this.#process = PeerProcess.fromIdentity(pid, startTime);
      this.#stopWatching = this.#process.onGone(() => this.#end());
      // Acknowledges last, when nothing can fail any more. If the process is gone, the link is
      // closed.
      if (this.#isEnded) this.#stopWatching();
      else sendAck(link);
    } catch (error) {
      this.#watch.close();
      this.#stopWatching?.();
      this.#lease.end();
      throw error;
    }
  }

  /** The third process has closed all its copies of the link, or is ending. */
  #onLinkClosed(): void {
    this.#watch.close();
    const isEnding = this.#process?.isExitObservable ? this.#process.isEnding : undefined;
    if (isEnding === undefined)
      this.#graceTimer = setTimeout(() => this.#end(), this.#graceMs).unref();
    else if (!isEnding) this.#end();
  }

  #end(): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    clearTimeout(this.#graceTimer);
    this.#watch.close();
    discardFd(this.#link);
    // Not set yet if the process was gone from the start.
    this.#stopWatching?.();
    this.#lease.end();
    this.#onReleased();
  }
}

const ACK = Uint8Array.of(1);

/**
 * Checks that a descriptor is a link that the requesting process made. A byte is written to it,
 * which must not reach a file, a terminal or another service.
 *
 * @throws SystemError ENOTSOCK
 * @throws IpcError for any other socket
 */
function checkLink(link: number, requester: number): void {
  const refused = 'received an invalid link for a forwarded object';
  if (!isMessageSocket(link))
    throw new IpcError(`${refused}: it is not a connected Unix socket of type SOCK_SEQPACKET`);
  const { pid } = peerCredentials(link);
  if (pid !== requester)
    throw new IpcError(`${refused}: it leads to process ${pid}, but process ${requester} sent it`);
}

/** Acknowledges a request through the link. @throws SystemError */
function sendAck(link: number): void {
  try {
    sendMessage(link, ACK);
  } catch (error) {
    // The requesting process is gone, and its end of the link with it. The watch finds that.
    if (!(error instanceof SystemError) || !isGone(error)) throw error;
  }
}
