import { closeFd, isShortage, SystemError } from '../../../ffi/linux/libc.ts';
import { peerPidfd, pidfdOf } from '../../../ffi/linux/pidfd.ts';
import { type FdWatch, watchFd } from '../../../ffi/linux/poll.ts';
import { isProcessEnding, processStartTime } from '../../../ffi/linux/process.ts';

/** How a process exited: by itself, or by a signal. */
interface ProcessExit {
  readonly exitCode: number | undefined;
  readonly signal: NodeJS.Signals | undefined;
  /** The end of what it has written to stderr, if that was read. */
  readonly stderr: string | undefined;
}

/**
 * The process at the other end of a connection. Reports when the process ends, which the end of the
 * connection does not tell. Watching does not keep this process alive.
 */
export class PeerProcess {
  /** 0 for a process of another pid namespace. */
  readonly pid: number;
  /** Whether the end of the process can be observed. */
  readonly isExitObservable: boolean;
  readonly #key: string | undefined;
  readonly #listeners = new Set<() => void>();
  #pidfd: number | undefined;
  #watch: FdWatch | undefined;
  #isGone = false;
  /** How a child of this process exited; undefined for others, and until that is known. */
  exit: ProcessExit | undefined;

  private constructor(pid: number, key: string | undefined, exitSource: ExitSource) {
    this.pid = pid;
    this.#key = key;
    this.isExitObservable = exitSource !== 'unobservable';
    this.#isGone = exitSource === 'gone';
    this.#pidfd = typeof exitSource === 'number' ? exitSource : undefined;
  }

  /**
   * Returns the process that connected, listened or made the socket pair.
   *
   * @throws SystemError if there is no descriptor left for it
   */
  static ofSocket(socket: number, pid: number): PeerProcess {
    return PeerProcess.#open(pid, () => peerPidfd(socket), unobservable);
  }

  /** Returns a child that nobody has waited for yet. The pid is 0 if it never started. */
  static ofChild(pid: number): PeerProcess {
    return PeerProcess.#open(
      pid,
      () => pidfdOf(pid),
      () => 'by-parent',
    );
  }

  /**
   * Returns a process that another process has named. Its end is not observable if no such process
   * is visible here.
   */
  static fromIdentity(pid: number, startTime: number): PeerProcess {
    const isHere = pid > 0 && processStartTime(pid) === startTime;
    if (!isHere) return new PeerProcess(0, undefined, 'unobservable');
    return PeerProcess.#open(
      pid,
      () => pidfdOf(pid),
      () => 'unobservable',
    );
  }

  /** @param onError says how the end is observed if there is no pidfd */
  static #open(
    pid: number,
    open: () => number | undefined,
    onError: (error: SystemError) => ExitSource,
  ): PeerProcess {
    const exitSource = exitSourceOf(pid, open, onError);
    const started = pid > 0 ? processStartTime(pid) : undefined;
    const key = started === undefined ? undefined : `${pid} ${started}`;
    const existing = key === undefined ? undefined : watchedProcesses.get(key);
    // A process whose end is observable must not share the entry of one whose end is not.
    if (!existing)
      return new PeerProcess(pid, exitSource === 'unobservable' ? undefined : key, exitSource);
    if (typeof exitSource === 'number') closeFd(exitSource);
    return existing;
  }

  /** Whether the process has ended and the kernel has released its resources. */
  get isGone(): boolean {
    return this.#isGone;
  }

  /**
   * Whether the process has ended or is ending, which may have closed the connection. Undefined if
   * that is unknown, as for a process of another pid namespace.
   */
  get isEnding(): boolean | undefined {
    return this.#isGone || (this.pid > 0 ? isProcessEnding(this.pid) : undefined);
  }

  /**
   * Calls `gone` once the process has ended. Returns a function that stops watching; the last one
   * releases the pidfd.
   *
   * @throws SystemError if the process cannot be watched; then the pidfd is released
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

  /** Marks the process as ended, as its parent was notified. */
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
    this.#watch = watchFd(this.#pidfd, { readable: true }, () => this.markGone(), {
      urgent: true,
    });
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

// ---- How the end of a process is observed ----

/** The processes that are watched. Each has one pidfd, however many connections there are. */
const watchedProcesses = new Map<string, PeerProcess>();

/**
 * How the end of a process is observed: through a pidfd, not at all, by its parent, or it has
 * already ended.
 */
type ExitSource = number | 'unobservable' | 'by-parent' | 'gone';

function exitSourceOf(
  pid: number,
  open: () => number | undefined,
  onError: (error: SystemError) => ExitSource,
): ExitSource {
  try {
    // A process with a pid but no pidfd has ended.
    return open() ?? (pid > 0 ? 'gone' : 'unobservable');
  } catch (error) {
    if (error instanceof SystemError) return onError(error);
    throw error;
  }
}

/** Without pidfds in the kernel, or without permission, the end of a process cannot be observed. */
function unobservable(error: SystemError): 'unobservable' {
  // A descriptor may soon be available. Taking the end of the connection for the end of the process
  // would be too early.
  if (isShortage(error)) throw error;
  return 'unobservable';
}
