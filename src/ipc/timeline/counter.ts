import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { closeFd, createPipe, duplicateFd, isPipeEnd } from '../../../ffi/linux/libc.ts';
import { type FdWatch, watchFd } from '../../../ffi/linux/poll.ts';
import { closeWithThread, type ThreadFd } from '../../../ffi/linux/thread-fd.ts';
import { IpcError } from '../../errors.ts';
import { MAX_READS } from '../../waits/read-word.ts';
import { END_OF_WAITS, Outcome, TimelineWord } from '../protocol.ts';
import { SharedWords } from './words.ts';

/** What every process that has a counter maps and watches. */
export interface CounterFds {
  /** The memory with the words. */
  readonly memory: number;
  /** A pipe that nobody writes to. It ends with the process that advances the counter. */
  readonly lifeline: number;
}

/**
 * The words of a timeline, which any number of processes map. One of them advances the value. When it
 * closes the timeline, it stores {@link END_OF_WAITS}, which ends all waits. If it dies, each of the
 * others does.
 */
export class TimelineCounter {
  readonly words: SharedWords;
  readonly #lifeline: number;
  #watch: FdWatch | undefined;
  #isEnded = false;
  #isClosed = false;

  private constructor(words: SharedWords, lifeline: number) {
    this.words = words;
    this.#lifeline = lifeline;
  }

  /** Creates a counter that stands at 0, and the end of the pipe that its writer keeps. @throws SystemError */
  static create(): { readonly counter: TimelineCounter; readonly writeEnd: WriteEnd } {
    const words = SharedWords.create('cuffi-timeline');
    let lifeline: number | undefined;
    try {
      const [readEnd, end] = createPipe();
      lifeline = readEnd;
      return { counter: new TimelineCounter(words, lifeline), writeEnd: new WriteEnd(end) };
    } catch (error) {
      words.close();
      if (lifeline !== undefined) closeFd(lifeline);
      throw error;
    }
  }

  /**
   * Maps the counter of another process. It owns the descriptors from now on, also if it throws.
   *
   * @throws IpcError for any other descriptors
   */
  static accept({ memory, lifeline }: CounterFds): TimelineCounter {
    try {
      const words = SharedWords.accept(memory, 'timeline', { keepsFd: true });
      if (isPipeEnd(lifeline, 'read')) return new TimelineCounter(words, lifeline);
      words.close();
      throw new IpcError('received a timeline without its pipe');
    } catch (error) {
      discardFd(lifeline);
      throw error;
    }
  }

  get fds(): CounterFds {
    return { memory: this.words.fd, lifeline: this.#lifeline };
  }

  /**
   * Watches for the end of the process that advances the counter. This does not keep the process
   * alive.
   *
   * @throws SystemError
   */
  watchWriter(onEnded: () => void): void {
    const ended = (): void => {
      // Also for data: no writer of cuffi writes any, and it would be reported for ever.
      this.#stopWatching();
      this.markEnded();
      onEnded();
    };
    this.#watch = watchFd(this.#lifeline, { readable: true }, ended, { urgent: true });
    this.#watch.unref();
  }

  /**
   * The value, from 0. `INVALID` if another process has stored what is not a value. After the
   * end, the last value.
   */
  get value(): number {
    return this.#observe();
  }

  /** Reads the value, and notes the end of the process that advances it. */
  #observe(): number {
    if (this.#isEnded) return this.#lastValue;
    const value = this.words.read(TimelineWord.value);
    // Read second: a device may write over END_OF_WAITS, but nobody sets the outcome back.
    const isOpen =
      value !== Number.POSITIVE_INFINITY &&
      this.words.readSmall(TimelineWord.outcome) === Outcome.open;
    if (isOpen) return value;
    this.#isEnded = true;
    return this.#lastValue;
  }

  /** Whether the last read of the value, or a watch, found that the process has ended. */
  get isKnownEnded(): boolean {
    return this.#isEnded;
  }

  /** Whether the process that advanced the counter has ended or closed it. */
  get isEnded(): boolean {
    // Reading the value notices what another process has stored.
    if (!this.words.isUnmapped) this.#observe();
    return this.#isEnded;
  }

  isReached(value: number): boolean {
    return this.words.isUnmapped || this.value >= value;
  }

  /** Whether a process has ended before a value came that it had promised: see {@link abandon}. */
  get isAbandoned(): boolean {
    return this.words.readSmall(TimelineWord.outcome) === Outcome.abandoned;
  }

  /** Stores a value from the CPU, unless the counter is already that far or has ended. */
  advanceTo(value: number): void {
    if (this.words.isUnmapped || this.isReached(value) || this.isEnded) return;
    this.words.write(TimelineWord.value, value);
  }

  /**
   * Stores {@link END_OF_WAITS}, and beside it the last value. Several processes may do so at a time, and a
   * device of the ended process may still write: later calls repair that.
   */
  markEnded(): void {
    this.#end(Outcome.closed);
  }

  /**
   * As {@link markEnded}, because a process has ended before a value came that it had promised. What
   * devices still store behind that value counts no longer.
   */
  abandon(): void {
    this.#end(Outcome.abandoned);
  }

  #end(outcome: number): void {
    this.#isEnded = true;
    if (this.words.isUnmapped) return;
    for (let attempt = 0; attempt < MAX_READS; attempt += 1) {
      const word = this.words.load(TimelineWord.value);
      if (word < 2n ** 53n && !this.isAbandoned) this.#raiseLast(word);
      // Before the waits end: a process that sees a later value must see this, too.
      if (this.words.readSmall(TimelineWord.outcome) < outcome)
        this.words.write(TimelineWord.outcome, outcome);
      if (word === END_OF_WAITS) return;
      if (this.words.exchange(TimelineWord.value, word, END_OF_WAITS)) return;
    }
  }

  /** The process that advances the counter; 0 if it is of another pid namespace. */
  get writerPid(): number {
    return this.words.signer(TimelineWord.pid, TimelineWord.pidNamespace);
  }

  /** Notes that this process advances the counter. */
  becomeWriter(): void {
    this.words.sign(TimelineWord.pid, TimelineWord.pidNamespace);
  }

  /** Returns copies of the descriptors. @throws SystemError */
  duplicateFds(): CounterFds {
    const memory = this.words.copyFd();
    try {
      return { memory, lifeline: duplicateFd(this.#lifeline) };
    } catch (error) {
      closeFd(memory);
      throw error;
    }
  }

  /**
   * Unmaps the page once no stream here can wait for it, and until then watches the writer. The second
   * call does nothing: the end of the writer may come after the close, and is a use of its own.
   */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.words.close(() => {
      this.#stopWatching();
      discardFd(this.#lifeline);
    });
  }

  get #lastValue(): number {
    if (this.words.isUnmapped) return 0;
    const last = this.words.read(TimelineWord.last);
    return Number.isFinite(last) ? Math.max(last, 0) : 0;
  }

  #raiseLast(value: bigint): void {
    for (let attempt = 0; attempt < MAX_READS; attempt += 1) {
      const known = this.words.load(TimelineWord.last);
      if (known >= value && known < 2n ** 53n) return;
      if (this.words.exchange(TimelineWord.last, known, value)) return;
    }
  }

  #stopWatching(): void {
    this.#watch?.close();
    this.#watch = undefined;
  }
}

/**
 * The end of the pipe that the writer of a counter keeps open. The kernel closes it when the process
 * ends. Nothing is ever written to it.
 */
export class WriteEnd {
  readonly #owned: ThreadFd;
  #isClosed = false;

  /** @param fd owned from now on, also if it throws @throws SystemError */
  constructor(fd: number) {
    this.#owned = closeWithThread(fd, discardFd);
  }

  /** Takes the descriptor that another process has sent. Owned from now on. @throws IpcError */
  static accept(fd: number): WriteEnd {
    if (!isPipeEnd(fd, 'write')) {
      discardFd(fd);
      throw new IpcError("received a timeline's signaler without its pipe");
    }
    try {
      return new WriteEnd(fd);
    } catch (error) {
      throw new IpcError("received a timeline's signaler that cannot be kept", error as Error);
    }
  }

  get fd(): number {
    return this.#owned.fd;
  }

  /** The second call does nothing. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#owned.close();
  }
}
