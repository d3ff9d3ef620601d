import { discardFd, discardFds } from '../../../ffi/linux/close-fd.ts';
import { closeFd, duplicateFd, SystemError } from '../../../ffi/linux/libc.ts';
import { isGone, sendMessage, takeMessage } from '../../../ffi/linux/message.ts';
import { type FdWatch, watchFd } from '../../../ffi/linux/poll.ts';
import { processStartTime } from '../../../ffi/linux/process.ts';
import { isMessageSocket, peerCredentials, socketPair } from '../../../ffi/linux/socket.ts';
import { IpcError } from '../../errors.ts';
import { ownerOf } from '../shareable.ts';
import type { Shareable } from '../sharing/export.ts';
import type { Lease } from './lease.ts';
import { PeerProcess } from './peer-process.ts';

/** One who has something of the other end by way of this process. */
export interface Adopted {
  readonly lease: number;
  readonly pid: number;
  readonly startTime: number;
}

interface Unsaid extends Adopted {
  readonly link: number;
}

/** What comes of what was asked. */
export interface Asked {
  /** Resolves when the other end keeps it, or is not there to. */
  readonly answered: Promise<void>;
  /** To be called, once, when the third process has given it back, or did not get it. */
  over(): void;
}

/** How much the other end is asked to keep at a time. */
export const MAX_ASKED = 1024;

/** What the other end is asked to keep for others too: what would be too much waits for less. */
export class Adopting {
  readonly #changed: () => void;
  /** Each ends the wait for an answer. */
  readonly #waiting = new Set<() => void>();
  #unsaid: Unsaid[] = [];
  /** How much the other end has been asked to keep that is not over. */
  #said = 0;
  #isOver = false;

  /** @param changed called when there is something to be told */
  constructor(changed: () => void) {
    this.#changed = changed;
  }

  /**
   * Asks for one thing. The other end answers by the link, so that this does not wait for the values
   * that come before: they may be more than are taken meanwhile.
   *
   * @param link the other end's end of it, closed when it went out
   * @param ours the end that the third process gets, which stays its caller's
   * @throws SystemError; the link is closed then, too
   */
  ask(lease: number, pid: number, startTime: number, link: number, ours: number): Asked {
    if (this.#isOver) {
      closeFd(link);
      return { answered: Promise.resolve(), over() {} };
    }
    const answered = this.#answerBy(link, ours);
    const asked = { lease, pid, startTime, link };
    this.#unsaid.push(asked);
    this.#changed();
    return { answered, over: () => this.#over(asked) };
  }

  /** What is to be told now: no more than go in one message. */
  take(): Unsaid[] {
    const taken = this.#unsaid.splice(0, Math.min(MAX_ADOPTED, MAX_ASKED - this.#said));
    this.#said += taken.length;
    return taken;
  }

  /** Takes back what was to be told in a message that could not be sent. */
  restore(taken: readonly Unsaid[]): void {
    this.#said -= taken.length;
    this.#unsaid.unshift(...taken);
  }

  /** Whether something of a lease is still to be asked for: it must not be given back before. */
  isNeeded(lease: number): boolean {
    return this.#unsaid.some((unsaid) => unsaid.lease === lease);
  }

  /** The other end answers no more. */
  end(): void {
    this.#isOver = true;
    for (const { link } of this.#unsaid.splice(0)) closeFd(link);
    for (const answered of this.#waiting) answered();
  }

  #over(asked: Unsaid): void {
    const at = this.#unsaid.indexOf(asked);
    if (at >= 0) {
      this.#unsaid.splice(at, 1);
      closeFd(asked.link);
      return;
    }
    this.#said -= 1;
    if (this.#unsaid.length > 0) this.#changed();
  }

  #answerBy(link: number, ours: number): Promise<void> {
    let resolve: () => void = () => {};
    const answer = new Promise<void>((resolved) => {
      resolve = resolved;
    });
    let own: number | undefined;
    try {
      own = duplicateFd(ours);
      this.#await(own, resolve);
      return answer;
    } catch (error) {
      closeFd(link);
      if (own !== undefined) closeFd(own);
      throw error;
    }
  }

  /** @param own closed when the answer came, or none comes any more; not where this throws */
  #await(own: number, resolve: () => void): void {
    const answered = (): void => {
      this.#waiting.delete(answered);
      watch.close();
      takeAnswer(own);
      closeFd(own);
      resolve();
    };
    const watch = watchFd(own, { readable: true }, answered);
    watch.unref();
    this.#waiting.add(answered);
  }
}

/** So that it does not go on to the third process. */
function takeAnswer(fd: number): void {
  try {
    const answer = takeMessage(fd);
    // Descriptors would be closed by a read that does not ask for them.
    if (typeof answer === 'object') discardFds(answer.fds);
  } catch {
    // It did not come, as the other end is gone, or ends without.
  }
}

/** Of one message. */
const MAX_ADOPTED = 64;

const KEPT = Uint8Array.of(1);

/**
 * Refuses a descriptor that is not a link which the asking process has made: a byte is written to
 * it, which must not reach a file, a terminal or a connection to another service.
 *
 * @throws SystemError ENOTSOCK
 * @throws IpcError for any other socket
 */
function checkLink(link: number, asker: number): void {
  const refused = 'a descriptor came as a link to a process that memory was passed on to';
  if (!isMessageSocket(link))
    throw new IpcError(`${refused}, and is not a connected Unix socket of type SOCK_SEQPACKET`);
  const { pid } = peerCredentials(link);
  if (pid !== asker)
    throw new IpcError(`${refused}: it leads to process ${pid}, and process ${asker} has sent it`);
}

/** Tells the process that asked, by the link, that something is kept. @throws SystemError */
function tellKept(link: number): void {
  try {
    sendMessage(link, KEPT);
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
export class Adoption {
  readonly #lease: Lease;
  readonly #link: number;
  #process: PeerProcess | undefined;
  readonly #watch: FdWatch;
  readonly #graceMs: number;
  #watchNoMore: (() => void) | undefined;
  readonly #over: () => void;
  #isOver = false;

  /**
   * @param lease of the one between, which has asked
   * @param link this process's end, which is this object's from now on, unless this throws
   * @param over called when it is given back
   * @throws IpcError, SystemError for a link that is not of the process between
   */
  constructor(
    lease: Lease,
    { pid, startTime }: { readonly pid: number; readonly startTime: number },
    link: number,
    graceMs: number,
    over: () => void,
  ) {
    checkLink(link, lease.holder.pid);
    this.#link = link;
    this.#graceMs = graceMs;
    this.#over = over;
    this.#watch = watchFd(link, { readable: true }, () => this.#closed());
    this.#watch.unref();
    // It is asked by way of the one between.
    this.#lease = lease.passedOn({ pid, name: `process ${pid}`, revoke: () => {} });
    try {
      this.#process = PeerProcess.known(pid, startTime);
      this.#watchNoMore = this.#process.onGone(() => this.#end());
      // Last, when nothing is left that may fail: the link is closed where the process is gone.
      if (this.#isOver) this.#watchNoMore();
      else tellKept(link);
    } catch (error) {
      this.#watch.close();
      this.#watchNoMore?.();
      this.#lease.end();
      throw error;
    }
  }

  /** All ends of the others are closed: by their owner, or because that ends. */
  #closed(): void {
    this.#watch.close();
    const isEnding = this.#process?.isSeen ? this.#process.isEnding : undefined;
    if (isEnding === undefined) setTimeout(() => this.#end(), this.#graceMs).unref();
    else if (!isEnding) this.#end();
  }

  #end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#watch.close();
    discardFd(this.#link);
    // Not there yet where the process was gone from the beginning.
    this.#watchNoMore?.();
    this.#lease.end();
    this.#over();
  }
}

/** Who has lent an object to this process: it is asked before that is passed on. */
export interface Lender {
  readonly process: PeerProcess;
  /**
   * Has it keep the object for another process too.
   *
   * @param link the lender's end, which is the callee's from now on
   * @param ours the other process's, which stays the caller's
   */
  adopt(pid: number, startTime: number, link: number, ours: number): Asked;
}

// On the object itself: a WeakMap with an entry for each would keep the collector busy.
const LENDER = Symbol('lender');

interface Borrowed {
  [LENDER]?: Lender;
}

/** Remembers who has lent what is open here. */
export function rememberLender(object: object, lender: Lender): void {
  (object as Borrowed)[LENDER] = lender;
}

const lenderOf = (object: Shareable): Lender | undefined => (ownerOf(object) as Borrowed)[LENDER];

/** Objects of others that go to a third process. */
export interface Passing {
  /** Which of the objects they are. */
  readonly kept: readonly number[];
  /** Of the link of each to its maker the end for the third process: whoever calls closes these. */
  readonly links: readonly number[];
  /** When all lenders keep it; undefined where there are none. */
  readonly agreed: Promise<unknown> | undefined;
  /** Of each: to be called, once, when the third process has given it back, or did not get it. */
  readonly over: readonly (() => void)[];
}

const nothing: Passing = { kept: [], links: [], agreed: undefined, over: [] };

/** Asks the lenders of what goes to a process. @throws SystemError */
export function passOn(objects: readonly Shareable[], to: PeerProcess): Passing {
  if (!objects.some(lenderOf)) return nothing;
  const lent = objects.map(lenderOf);
  // What goes back to its maker is its own.
  const kept = lent.flatMap((lender, at) => (lender && !isSame(lender.process, to) ? [at] : []));
  if (kept.length === 0) return nothing;
  const startTime = processStartTime(to.pid) ?? 0;
  const links: number[] = [];
  const asked: Asked[] = [];
  try {
    for (const at of kept) {
      const [theirs, ours] = socketPair();
      links.push(ours);
      asked.push((lent[at] as Lender).adopt(to.pid, startTime, theirs, ours));
    }
  } catch (error) {
    links.forEach(closeFd);
    for (const { over } of asked) over();
    throw error;
  }
  const agreed = Promise.all(asked.map(({ answered }) => answered));
  return { kept, links, agreed, over: asked.map(({ over }) => over) };
}

/** All processes of other pid namespaces have the pid 0 here: only one connection tells them apart. */
const isSame = (a: PeerProcess, b: PeerProcess): boolean =>
  a === b || (a.pid > 0 && a.pid === b.pid);
