import { discardFd } from '../../../ffi/discard.ts';
import { SystemError } from '../../../ffi/libc.ts';
import { isGone, sendMessage } from '../../../ffi/message.ts';
import { type FdWatch, watchFd } from '../../../ffi/poll.ts';
import type { Lease } from './lease.ts';
import { PeerProcess } from './peer-process.ts';

const KEPT = Uint8Array.of(1);

/** Tells the one who asked, by the link, that something is kept. @throws SystemError for no socket */
function tellKept(link: number): void {
  try {
    sendMessage(link, KEPT);
  } catch (error) {
    // Who asked is gone, and so is the link: that is seen below.
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
  readonly #process: PeerProcess;
  readonly #watch: FdWatch;
  readonly #graceMs: number;
  readonly #watchNoMore: () => void;
  readonly #over: () => void;
  #isOver = false;

  /**
   * @param lease of the one between
   * @param link this process's end, which is this object's from now on, unless this throws
   * @param over called when it is given back
   * @throws SystemError for a link that is no socket
   */
  constructor(
    lease: Lease,
    { pid, startTime }: { readonly pid: number; readonly startTime: number },
    link: number,
    graceMs: number,
    over: () => void,
  ) {
    tellKept(link);
    this.#link = link;
    this.#graceMs = graceMs;
    this.#over = over;
    this.#process = PeerProcess.known(pid, startTime);
    this.#watch = watchFd(link, { readable: true }, () => this.#closed());
    this.#watch.unref();
    // It is asked by way of the one between.
    this.#lease = lease.passedOn({ pid, name: `process ${pid}`, revoke: () => {} });
    this.#watchNoMore = this.#process.onGone(() => this.#end());
    if (this.#isOver) this.#watchNoMore();
  }

  /** All ends of the others are closed: by their owner, or because that ends. */
  #closed(): void {
    this.#watch.close();
    const isEnding = this.#process.isSeen ? this.#process.isEnding : undefined;
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
