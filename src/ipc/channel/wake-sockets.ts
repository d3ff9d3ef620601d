import { discardFd, discardFds } from '../../../ffi/linux/close-fd.ts';
import { closeFd, isShortage, SystemError } from '../../../ffi/linux/libc.ts';
import { sendMessage, takeMessage } from '../../../ffi/linux/message.ts';
import { type FdWatch, watchFd } from '../../../ffi/linux/poll.ts';
import { isReceiveEnd, isSendEnd, oneWaySockets } from '../../../ffi/linux/socket.ts';
import { closeWithThread, type ThreadFd } from '../../../ffi/linux/thread-fd.ts';
import { IpcError } from '../../errors.ts';

/** The two ends that another process gets. */
export interface SentEnds {
  readonly receiveEnd: number;
  readonly sendEnd: number;
}

/**
 * One end of two one-way sockets between two processes. Each end wakes up the other, and sees its
 * end: the kernel closes the sockets of a process that ends.
 *
 * The other process may keep a copy of every end. Whatever it does with that, no call here blocks.
 */
export class WakeSockets {
  readonly #receiveEnd: number;
  /** The other end sees when it is closed. Nothing can arrive there, so its close never blocks. */
  readonly #sendEnd: ThreadFd;
  readonly #watch: FdWatch;
  #hasEnded = false;
  #isClosed = false;

  /** @param onWake called when the other end wakes this one up, or has ended */
  private constructor(receiveEnd: number, sendEnd: ThreadFd, onWake: () => void) {
    this.#receiveEnd = receiveEnd;
    this.#sendEnd = sendEnd;
    const received = (): void => {
      this.#receive();
      onWake();
    };
    this.#watch = watchFd(receiveEnd, { readable: true }, received, { urgent: true });
    this.#watch.unref();
  }

  /** Creates both pairs. The caller owns the ends that are returned for the other process. @throws SystemError */
  static create(onWake: () => void): { readonly sockets: WakeSockets; readonly sent: SentEnds } {
    const [theirReceiveEnd, ownSendEnd] = oneWaySockets();
    let ownReceiveEnd: number;
    let theirSendEnd: number;
    try {
      [ownReceiveEnd, theirSendEnd] = oneWaySockets();
    } catch (error) {
      closeFd(theirReceiveEnd);
      closeFd(ownSendEnd);
      throw error;
    }
    try {
      const sockets = WakeSockets.#open(ownReceiveEnd, ownSendEnd, onWake);
      return { sockets, sent: { receiveEnd: theirReceiveEnd, sendEnd: theirSendEnd } };
    } catch (error) {
      closeFd(theirReceiveEnd);
      closeFd(theirSendEnd);
      throw error;
    }
  }

  /**
   * Takes the ends that another process has sent. Owned from now on, also if it throws.
   *
   * @throws IpcError for anything but the ends of one-way sockets
   */
  static accept({ receiveEnd, sendEnd }: SentEnds, onWake: () => void): WakeSockets {
    if (!(isReceiveEnd(receiveEnd) && isSendEnd(sendEnd))) {
      discardFds([receiveEnd, sendEnd]);
      throw new IpcError('received a channel without its sockets');
    }
    try {
      return WakeSockets.#open(receiveEnd, sendEnd, onWake);
    } catch (error) {
      throw new IpcError('received a channel whose sockets cannot be watched', error as Error);
    }
  }

  /** Owns the ends, also if it throws. @throws SystemError */
  static #open(receiveEnd: number, sendEnd: number, onWake: () => void): WakeSockets {
    try {
      const owned = closeWithThread(sendEnd, closeFd);
      try {
        return new WakeSockets(receiveEnd, owned, onWake);
      } catch (error) {
        owned.close();
        throw error;
      }
    } catch (error) {
      discardFd(receiveEnd);
      throw error;
    }
  }

  /** Whether the other end has ended. */
  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** Wakes up the other end. Does nothing if it has not read many earlier wake-ups, or has ended. */
  wake(): void {
    if (this.#isClosed || this.#hasEnded) return;
    try {
      // A full queue wakes up the other end as well.
      sendMessage(this.#sendEnd.fd, WAKE_UP);
    } catch (error) {
      // The watch sees the end of the other end.
      if (!(error instanceof SystemError)) throw error;
    }
  }

  /** Closes this end, which the other end sees. The second call does nothing. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#watch.close();
    discardFd(this.#receiveEnd);
    this.#sendEnd.close();
  }

  #receive(): void {
    try {
      const message = takeMessage(this.#receiveEnd);
      // No wake-up of cuffi has descriptors.
      if (typeof message === 'object') discardFds(message.fds);
      if (message !== 'end') return;
    } catch (error) {
      // Descriptors that this process has no room for.
      if (isShortage(error)) return;
    }
    this.#hasEnded = true;
    // The end would be reported for ever.
    this.#watch.close();
  }
}

const WAKE_UP = new Uint8Array(1);
