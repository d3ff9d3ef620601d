import { closeFd, isShortage, SystemError } from '../../../ffi/linux/libc.ts';
import { peerPidfd, pidfdOf } from '../../../ffi/linux/pidfd.ts';
import { type FdWatch, watchFd } from '../../../ffi/linux/poll.ts';
import { isProcessEnding, processStartTime } from '../../../ffi/linux/process.ts';

/**
 * How the end of a process is seen: by a descriptor, not at all, by its parent alone, or it is over
 * already.
 */
type ExitSource = number | 'unseen' | 'told' | 'gone';

/** How a process has ended: by itself, or by a signal. */
interface ProcessExit {
  readonly exitCode: number | undefined;
  readonly signal: NodeJS.Signals | undefined;
}

/** Those that somebody watches: a process has one descriptor here, however many connections. */
const watchedProcesses = new Map<string, PeerProcess>();

/**
 * The process at the other end of a connection, whose end is told: that of a connection says
 * nothing of it. Watching keeps nothing alive.
 */
export class PeerProcess {
  /** 0 where it is of another pid namespace. */
  readonly pid: number;
  /** Whether its end can be seen. */
  readonly isExitObservable: boolean;
  readonly #key: string | undefined;
  readonly #listeners = new Set<() => void>();
  #pidfd: number | undefined;
  #watch: FdWatch | undefined;
  #isGone = false;
  /** How a child of this process has ended; undefined for others, and before that is known. */
  exit: ProcessExit | undefined;

  private constructor(pid: number, key: string | undefined, exitSource: ExitSource) {
    this.pid = pid;
    this.#key = key;
    this.isExitObservable = exitSource !== 'unseen';
    this.#isGone = exitSource === 'gone';
    this.#pidfd = typeof exitSource === 'number' ? exitSource : undefined;
  }

  /**
   * The one that connected or listened, or made the pair of sockets.
   *
   * @throws SystemError where there is no descriptor left for it
   */
  static ofSocket(socket: number, pid: number): PeerProcess {
    return PeerProcess.#open(pid, () => peerPidfd(socket), unobservable);
  }

  /** A child of this process, which nobody has waited for yet; 0 for one that never began. */
  static ofChild(pid: number): PeerProcess {
    return PeerProcess.#open(
      pid,
      () => pidfdOf(pid),
      () => 'told',
    );
  }

  /** One that another process has named; its end cannot be seen where it is none of here. */
  static fromIdentity(pid: number, startTime: number): PeerProcess {
    const isHere = pid > 0 && processStartTime(pid) === startTime;
    if (!isHere) return new PeerProcess(0, undefined, 'unseen');
    return PeerProcess.#open(
      pid,
      () => pidfdOf(pid),
      () => 'unseen',
    );
  }

  /** @param onError what is seen of it where that cannot be asked for */
  static #open(
    pid: number,
    open: () => number | undefined,
    onError: (error: SystemError) => ExitSource,
  ): PeerProcess {
    const exitSource = exitSourceOf(pid, open, onError);
    const started = pid > 0 ? processStartTime(pid) : undefined;
    const key = started === undefined ? undefined : `${pid} ${started}`;
    const existing = key === undefined ? undefined : watchedProcesses.get(key);
    // Who sees it must not be given one that does not.
    if (!existing)
      return new PeerProcess(pid, exitSource === 'unseen' ? undefined : key, exitSource);
    if (typeof exitSource === 'number') closeFd(exitSource);
    return existing;
  }

  /** Whether it has ended, and the kernel has taken all that it had. */
  get isGone(): boolean {
    return this.#isGone;
  }

  /**
   * Whether it has ended or is about to: its connection may have ended by that. Undefined where
   * that cannot be known, as of a process of another pid namespace.
   */
  get isEnding(): boolean | undefined {
    return this.#isGone || (this.pid > 0 ? isProcessEnding(this.pid) : undefined);
  }

  /**
   * Calls `gone` once it has ended; answers with the way to ask no more: the last lets it go.
   *
   * @throws SystemError where it cannot be watched; then it is let go
   */
  onGone(gone: () => void): () => void {
    if (this.#isGone) {
      gone();
      return () => {};
    }
    this.#listeners.add(gone);
    const stopWatching = (): void => {
      if (this.#listeners.delete(gone) && this.#listeners.size === 0) this.#release();
    };
    try {
      this.#listen();
    } catch (error) {
      stopWatching();
      throw error;
    }
    return stopWatching;
  }

  /** Its parent was told of its end. */
  markGone(): void {
    if (this.#isGone) return;
    this.#isGone = true;
    const listeners = [...this.#listeners];
    this.#listeners.clear();
    this.#release();
    for (const gone of listeners) gone();
  }

  #listen(): void {
    if (this.#key !== undefined) watchedProcesses.set(this.#key, this);
    if (this.#pidfd === undefined || this.#watch) return;
    this.#watch = watchFd(this.#pidfd, { readable: true }, () => this.markGone());
    this.#watch.unref();
  }

  #release(): void {
    if (this.#key !== undefined) watchedProcesses.delete(this.#key);
    this.#watch?.close();
    this.#watch = undefined;
    if (this.#pidfd !== undefined) closeFd(this.#pidfd);
    this.#pidfd = undefined;
  }
}

function exitSourceOf(
  pid: number,
  open: () => number | undefined,
  onError: (error: SystemError) => ExitSource,
): ExitSource {
  try {
    // A process that has a pid and no descriptor has ended.
    return open() ?? (pid > 0 ? 'gone' : 'unseen');
  } catch (error) {
    if (error instanceof SystemError) return onError(error);
    throw error;
  }
}

/** Where the kernel has no such descriptors, or none for this process, its end cannot be seen. */
function unobservable(error: SystemError): 'unseen' {
  // Soon there may be one: to take the end of the connection for its end would be too early.
  if (isShortage(error)) throw error;
  return 'unseen';
}
