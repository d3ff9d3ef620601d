import { closeFd, isShortage, SystemError } from '../../../ffi/linux/libc.ts';
import { peerPidfd, pidfdOf } from '../../../ffi/linux/pidfd.ts';
import { type FdWatch, watchFd } from '../../../ffi/linux/poll.ts';
import { isProcessEnding, processStartTime } from '../../../ffi/linux/process.ts';

/**
 * How the end of a process is seen: by a descriptor, not at all, by its parent alone, or it is over
 * already.
 */
type Sight = number | 'unseen' | 'told' | 'gone';

/** How a process has ended: by itself, or by a signal. */
interface ProcessExit {
  readonly exitCode: number | undefined;
  readonly signal: NodeJS.Signals | undefined;
}

/** Those that somebody watches: a process has one descriptor here, however many connections. */
const watched = new Map<string, PeerProcess>();

/**
 * The process at the other end of a connection, whose end is told: that of a connection says
 * nothing of it. Watching keeps nothing alive.
 */
export class PeerProcess {
  /** 0 where it is of another pid namespace. */
  readonly pid: number;
  /** Whether its end can be seen. */
  readonly isSeen: boolean;
  readonly #key: string | undefined;
  readonly #listeners = new Set<() => void>();
  #pidfd: number | undefined;
  #watch: FdWatch | undefined;
  #isGone = false;
  /** How a child of this process has ended; undefined for others, and before that is known. */
  exit: ProcessExit | undefined;

  private constructor(pid: number, key: string | undefined, sight: Sight) {
    this.pid = pid;
    this.#key = key;
    this.isSeen = sight !== 'unseen';
    this.#isGone = sight === 'gone';
    this.#pidfd = typeof sight === 'number' ? sight : undefined;
  }

  /**
   * The one that connected or listened, or made the pair of sockets.
   *
   * @throws SystemError where there is no descriptor left for it
   */
  static atOtherEnd(socket: number, pid: number): PeerProcess {
    return PeerProcess.#open(pid, () => peerPidfd(socket), unseen);
  }

  /** A child of this process, which nobody has waited for yet; 0 for one that never began. */
  static child(pid: number): PeerProcess {
    return PeerProcess.#open(
      pid,
      () => pidfdOf(pid),
      () => 'told',
    );
  }

  /** One that another process has named; its end cannot be seen where it is none of here. */
  static known(pid: number, startTime: number): PeerProcess {
    const isHere = pid > 0 && processStartTime(pid) === startTime;
    if (!isHere) return new PeerProcess(0, undefined, 'unseen');
    return PeerProcess.#open(
      pid,
      () => pidfdOf(pid),
      () => 'unseen',
    );
  }

  /** @param unknown what is seen of it where that cannot be asked for */
  static #open(
    pid: number,
    open: () => number | undefined,
    unknown: (error: SystemError) => Sight,
  ): PeerProcess {
    const sight = sightOf(pid, open, unknown);
    const started = pid > 0 ? processStartTime(pid) : undefined;
    const key = started === undefined ? undefined : `${pid} ${started}`;
    const known = key === undefined ? undefined : watched.get(key);
    // Who sees it must not be given one that does not.
    if (!known) return new PeerProcess(pid, sight === 'unseen' ? undefined : key, sight);
    if (typeof sight === 'number') closeFd(sight);
    return known;
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
    const forget = (): void => {
      if (this.#listeners.delete(gone) && this.#listeners.size === 0) this.#letGo();
    };
    try {
      this.#listen();
    } catch (error) {
      forget();
      throw error;
    }
    return forget;
  }

  /** Its parent was told of its end. */
  hasEnded(): void {
    if (this.#isGone) return;
    this.#isGone = true;
    const listeners = [...this.#listeners];
    this.#listeners.clear();
    this.#letGo();
    for (const gone of listeners) gone();
  }

  #listen(): void {
    if (this.#key !== undefined) watched.set(this.#key, this);
    if (this.#pidfd === undefined || this.#watch) return;
    this.#watch = watchFd(this.#pidfd, { readable: true }, () => this.hasEnded());
    this.#watch.unref();
  }

  #letGo(): void {
    if (this.#key !== undefined) watched.delete(this.#key);
    this.#watch?.close();
    this.#watch = undefined;
    if (this.#pidfd !== undefined) closeFd(this.#pidfd);
    this.#pidfd = undefined;
  }
}

function sightOf(
  pid: number,
  open: () => number | undefined,
  unknown: (error: SystemError) => Sight,
): Sight {
  try {
    // A process that has a pid and no descriptor has ended.
    return open() ?? (pid > 0 ? 'gone' : 'unseen');
  } catch (error) {
    if (error instanceof SystemError) return unknown(error);
    throw error;
  }
}

/** Where the kernel has no such descriptors, or none for this process, its end cannot be seen. */
function unseen(error: SystemError): 'unseen' {
  // Soon there may be one: to take the end of the connection for its end would be too early.
  if (isShortage(error)) throw error;
  return 'unseen';
}
