import { discardFd } from '../../../ffi/discard.ts';
import { SystemError } from '../../../ffi/libc.ts';
import { isGone, sendMessage } from '../../../ffi/message.ts';
import { type FdWatch, watchFd } from '../../../ffi/poll.ts';
import { isMessageSocket, peerCredentials } from '../../../ffi/socket.ts';
import { IpcError } from '../../errors.ts';
import type { Lease } from './lease.ts';
import { PeerProcess } from './peer-process.ts';

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
