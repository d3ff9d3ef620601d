import { closeFd, SystemError } from '../../../ffi/libc.ts';
import { peerPidfd, pidfdOf } from '../../../ffi/pidfd.ts';
import { type FdWatch, watchFd } from '../../../ffi/poll.ts';
import { isProcessEnding } from '../../../ffi/process.ts';

/**
 * The process at the other end of a connection, whose end is told: that of a connection says
 * nothing of it. Watching keeps nothing alive.
 */
export class PeerProcess {
  /** 0 where it is of another pid namespace. */
  readonly pid: number;
  /** Whether its end can be seen. */
  readonly isSeen: boolean;
  #pidfd: number | undefined;
  #watch: FdWatch | undefined;
  #isGone = false;
  readonly #listeners = new Set<() => void>();

  private constructor(pid: number, open: () => number | undefined) {
    this.pid = pid;
    let isSeen = true;
    try {
      this.#pidfd = open();
      isSeen = this.#pidfd !== undefined || pid > 0;
      this.#isGone = this.#pidfd === undefined && pid > 0;
    } catch (error) {
      if (!(error instanceof SystemError) || error.code === 'EMFILE') throw error;
      // Where there are no such descriptors, or none for this process.
      isSeen = false;
    }
    this.isSeen = isSeen;
  }

  /** The one that connected or listened, or made the pair of sockets. @throws SystemError EMFILE */
  static atOtherEnd(socket: number, pid: number): PeerProcess {
    return new PeerProcess(pid, () => peerPidfd(socket));
  }

  /** A child of this process, which nobody has waited for yet; 0 for one that never began. */
  static child(pid: number): PeerProcess {
    return new PeerProcess(pid, () => pidfdOf(pid));
  }

  /** Whether it has ended, and the kernel has taken all that it had. */
  get isGone(): boolean {
    return this.#isGone;
  }

  /** Whether it has ended or is about to: its connection may have ended by that. */
  get isEnding(): boolean {
    return this.#isGone || (this.pid > 0 && isProcessEnding(this.pid));
  }

  /** Calls `gone` once it has ended; answers with the way to ask no more. */
  onGone(gone: () => void): () => void {
    if (this.#isGone) {
      gone();
      return () => {};
    }
    this.#listeners.add(gone);
    this.#listen();
    return () => {
      this.#listeners.delete(gone);
      if (this.#listeners.size === 0) this.#stop();
    };
  }

  /** Its parent was told of its end. */
  hasEnded(): void {
    if (!this.#isGone) this.#ended();
  }

  /** Nobody asks any more. The second time does nothing. */
  close(): void {
    this.#listeners.clear();
    this.#stop();
    if (this.#pidfd !== undefined) closeFd(this.#pidfd);
    this.#pidfd = undefined;
  }

  #listen(): void {
    if (this.#pidfd === undefined || this.#watch) return;
    this.#watch = watchFd(this.#pidfd, { readable: true }, () => this.#ended());
    this.#watch.unref();
  }

  #stop(): void {
    this.#watch?.close();
    this.#watch = undefined;
  }

  #ended(): void {
    this.#isGone = true;
    const listeners = [...this.#listeners];
    this.close();
    for (const gone of listeners) gone();
  }
}
