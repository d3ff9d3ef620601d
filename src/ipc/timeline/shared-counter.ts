import { discardFd } from '../../../ffi/linux/close-fd.ts';
import {
  closeFd,
  createPipe,
  duplicateFd,
  isPipeEnd,
  SystemError,
} from '../../../ffi/linux/libc.ts';
import { createSealedMemfd, isSealedMemfd } from '../../../ffi/linux/memfd.ts';
import { type FdWatch, watchFd } from '../../../ffi/linux/poll.ts';
import { closeWithThread, type ThreadFd } from '../../../ffi/linux/thread-fd.ts';
import type { CUdeviceptr } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import { MAX_READS, readWord } from '../../waits/read-word.ts';
import { localProcess } from '../identity.ts';
import { END_OF_WAITS, Outcome, PAGE_BYTE_LENGTH, TimelineWord } from '../protocol.ts';
import { HostPage } from './host-page.ts';

/** What every process that has a counter maps and watches. */
export interface CounterFds {
  /** The memory with the words. */
  readonly memory: number;
  /** A pipe that nobody writes to. It ends with the process that advances the counter. */
  readonly lifeline: number;
}

/**
 * One 64-bit word in a page of host memory that any number of processes map. One of them advances
 * it. When it closes the counter, it stores {@link END_OF_WAITS}, which ends all waits. If it dies, each of
 * the others does.
 *
 * Every process can write the whole page. A wrong value delays or releases waits too early, but
 * crashes nothing.
 */
export class SharedCounter {
  readonly fds: CounterFds;
  readonly page: HostPage;
  /** The words as 32-bit halves: V8 reads those without allocating. */
  readonly #halves: Uint32Array;
  readonly #words: BigUint64Array;
  #watch: FdWatch | undefined;
  #isEnded = false;
  #isClosed = false;

  private constructor(fds: CounterFds) {
    this.page = new HostPage(fds.memory);
    this.fds = fds;
    this.#halves = new Uint32Array(this.page.view());
    this.#words = new BigUint64Array(this.#halves.buffer);
  }

  /** Creates a counter that stands at 0, and the end of the pipe that its writer keeps. @throws SystemError */
  static create(): { readonly counter: SharedCounter; readonly writeEnd: WriteEnd } {
    const memory = createSealedMemfd('cuffi-timeline', PAGE_BYTE_LENGTH);
    let lifeline: number | undefined;
    let writeEnd: WriteEnd | undefined;
    try {
      const [readEnd, end] = createPipe();
      lifeline = readEnd;
      writeEnd = new WriteEnd(end);
      return { counter: new SharedCounter({ memory, lifeline }), writeEnd };
    } catch (error) {
      closeFd(memory);
      if (lifeline !== undefined) closeFd(lifeline);
      writeEnd?.close();
      throw error;
    }
  }

  /**
   * Maps the counter of another process. It owns the descriptors from now on, also if it throws.
   *
   * @throws IpcError for any other descriptors: touching memory that can shrink could crash this
   * process
   */
  static accept(fds: CounterFds): SharedCounter {
    try {
      if (!isSealedMemfd(fds.memory, PAGE_BYTE_LENGTH))
        throw new IpcError('received a timeline that is not sealed memory of its size');
      if (!isPipeEnd(fds.lifeline, 'read'))
        throw new IpcError('received a timeline without its pipe');
      return new SharedCounter(fds);
    } catch (error) {
      discardFd(fds.memory);
      discardFd(fds.lifeline);
      if (!(error instanceof SystemError)) throw error;
      throw new IpcError('received a timeline that cannot be mapped', error);
    }
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
    this.#watch = watchFd(this.fds.lifeline, { readable: true }, ended, { urgent: true });
    this.#watch.unref();
  }

  /**
   * The value, from 0. `INVALID` if another process has stored what is not a value. After the
   * end, the last value.
   */
  get value(): number {
    if (this.#isEnded) return this.#lastValue;
    const value = readWord(this.#halves, TimelineWord.value);
    // Read second: a device may write over END_OF_WAITS, but nobody sets the outcome back.
    const isOpen =
      value !== Number.POSITIVE_INFINITY && this.#halves[2 * TimelineWord.outcome] === Outcome.open;
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
    if (!this.page.isUnmapped) void this.value;
    return this.#isEnded;
  }

  isReached(value: number): boolean {
    return this.page.isUnmapped || this.value >= value;
  }

  /** Whether a process has ended before a value came that it had promised: see {@link abandon}. */
  get isAbandoned(): boolean {
    return !this.page.isUnmapped && this.#halves[2 * TimelineWord.outcome] === Outcome.abandoned;
  }

  /** Stores a value from the CPU, unless the counter is already that far or has ended. */
  advanceTo(value: number): void {
    if (this.page.isUnmapped || this.isReached(value) || this.isEnded) return;
    Atomics.store(this.#words, TimelineWord.value, BigInt(value));
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
    if (this.page.isUnmapped) return;
    for (let attempt = 0; attempt < MAX_READS; attempt += 1) {
      const word = Atomics.load(this.#words, TimelineWord.value);
      if (word < 2n ** 53n && !this.isAbandoned) this.#raiseLast(word);
      // Before the waits end: a process that sees a later value must see this, too.
      if ((this.#halves[2 * TimelineWord.outcome] as number) < outcome)
        Atomics.store(this.#halves, 2 * TimelineWord.outcome, outcome);
      if (word === END_OF_WAITS) return;
      if (Atomics.compareExchange(this.#words, TimelineWord.value, word, END_OF_WAITS) === word)
        return;
    }
  }

  /** The process that advances the counter; 0 if it is of another pid namespace. */
  get writerPid(): number {
    if (this.page.isUnmapped) return 0;
    const isHere = Atomics.load(this.#words, TimelineWord.pidNamespace) === ownNamespace();
    return isHere ? Atomics.load(this.#halves, 2 * TimelineWord.pid) : 0;
  }

  /** Notes that this process advances the counter. */
  becomeWriter(): void {
    Atomics.store(this.#words, TimelineWord.pidNamespace, ownNamespace());
    Atomics.store(this.#halves, 2 * TimelineWord.pid, process.pid);
  }

  /** @throws CudaError if the driver does not let devices access the page */
  addressIn(context: Context): CUdeviceptr {
    return this.page.addressIn(context, TimelineWord.value);
  }

  /** Returns copies of the descriptors. @throws SystemError */
  duplicateFds(): CounterFds {
    const memory = duplicateFd(this.fds.memory);
    try {
      return { memory, lifeline: duplicateFd(this.fds.lifeline) };
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
    closeFd(this.fds.memory);
    this.page.close(() => {
      this.#stopWatching();
      discardFd(this.fds.lifeline);
    });
  }

  get #lastValue(): number {
    if (this.page.isUnmapped) return 0;
    const last = Atomics.load(this.#words, TimelineWord.last);
    return last < 2n ** 53n ? Number(last) : 0;
  }

  #raiseLast(value: bigint): void {
    for (let attempt = 0; attempt < MAX_READS; attempt += 1) {
      const known = Atomics.load(this.#words, TimelineWord.last);
      if (known >= value && known < 2n ** 53n) return;
      if (Atomics.compareExchange(this.#words, TimelineWord.last, known, value) === known) return;
    }
  }

  #stopWatching(): void {
    this.#watch?.close();
    this.#watch = undefined;
  }
}

const ownNamespace = (): bigint => BigInt(localProcess().pidNamespace);

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
