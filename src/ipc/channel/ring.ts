/** The memory of a channel besides its slots: a ring that the producer writes, and a seat for each consumer. */

import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { closeFd, duplicateFd, SystemError } from '../../../ffi/linux/libc.ts';
import {
  createSealedMemfd,
  isSealedAgainstHolePunching,
  isSealedMemfd,
  sealAgainstHolePunching,
} from '../../../ffi/linux/memfd.ts';
import { IpcError } from '../../errors.ts';
import { readWord } from '../../waits/read-word.ts';
import { localProcess } from '../identity.ts';
import {
  END_OF_WAITS,
  PAGE_BYTE_LENGTH,
  RECORD_BYTE_LENGTH,
  RingWord,
  SeatWord,
  WORD_BYTE_LENGTH,
} from '../protocol.ts';
import { HostPage } from '../timeline/host-page.ts';
import type { TimelinePoint } from '../timeline/point.ts';
import type { StoredPage } from '../timeline/store-tracker.ts';

const wholePages = (byteLength: number): number =>
  Math.ceil(byteLength / PAGE_BYTE_LENGTH) * PAGE_BYTE_LENGTH;

/** 64-bit words that two or more processes map. Each word is written by one of them. */
export class SharedWords implements StoredPage, Disposable {
  readonly hostPage: HostPage;
  /** All of the memory. Touching it after it is unmapped kills the process. */
  readonly bytes: Uint8Array;
  /** Undefined once another process has it, or if nobody needs it. */
  #fd: number | undefined;
  readonly #halves: Uint32Array;
  readonly #words: BigUint64Array;
  #isMemoryFixed = false;
  /** Whether waits for the words have been ended: those that are not reached never will be. */
  #isOver = false;
  #isClosed = false;

  /** @param fd owned from now on, also if it throws */
  private constructor(fd: number, byteLength: number) {
    try {
      this.hostPage = new HostPage(fd, byteLength);
    } catch (error) {
      discardFd(fd);
      throw error;
    }
    this.#fd = fd;
    const memory = this.hostPage.view();
    this.bytes = new Uint8Array(memory);
    this.#halves = new Uint32Array(memory);
    this.#words = new BigUint64Array(memory);
  }

  /** @throws SystemError */
  static create(name: string, byteLength: number): SharedWords {
    return new SharedWords(createSealedMemfd(name, byteLength), byteLength);
  }

  /**
   * Maps the memory of another process.
   *
   * @param fd owned from now on, also if it throws
   * @param isForDevices whether devices wait for its words: then nobody else can map it from now on
   * @throws IpcError for anything but sealed memory of that size: touching other memory could crash
   * this process
   */
  static accept(fd: number, byteLength: number, isForDevices: boolean): SharedWords {
    if (!isSealedMemfd(fd, byteLength)) {
      discardFd(fd);
      throw new IpcError('received a channel whose memory is not sealed memory of its size');
    }
    let words: SharedWords | undefined;
    try {
      words = new SharedWords(fd, byteLength);
      words.#isMemoryFixed = isForDevices && sealAgainstHolePunching(fd);
      closeFd(words.takeFd());
      return words;
    } catch (error) {
      words?.close();
      if (!(error instanceof SystemError)) throw error;
      throw new IpcError('received a channel whose memory cannot be mapped', error);
    }
  }

  /**
   * Whether no process can change which memory backs the words. Otherwise only hosts may wait for
   * them: a device would keep waiting in memory that was replaced, where no host can end the wait.
   * Words that were created here are fixed once the other process has mapped them.
   */
  get isMemoryFixed(): boolean {
    if (this.#isMemoryFixed || this.#fd === undefined) return this.#isMemoryFixed;
    this.#isMemoryFixed = isSealedAgainstHolePunching(this.#fd);
    if (this.#isMemoryFixed) closeFd(this.takeFd());
    return this.#isMemoryFixed;
  }

  /** The descriptor of words that were created here. */
  get fd(): number {
    return this.#fd as number;
  }

  /** As {@link fd}. The caller owns it from now on. */
  takeFd(): number {
    const { fd } = this;
    this.#fd = undefined;
    return fd;
  }

  /** A copy of {@link fd}, which the caller owns. Then {@link isMemoryFixed} can become true here. @throws SystemError */
  copyFd(): number {
    return duplicateFd(this.fd);
  }

  /** The value of a word; Infinity if its waits were ended, -1 if it holds no value. */
  read(index: number): number {
    return this.hostPage.isUnmapped ? Number.POSITIVE_INFINITY : readWord(this.#halves, index);
  }

  write(index: number, value: number): void {
    if (!this.hostPage.isUnmapped) Atomics.store(this.#words, index, BigInt(value));
  }

  store({ index, count }: TimelinePoint): void {
    this.write(index, count);
  }

  isReached({ index, count }: TimelinePoint): boolean {
    return this.#isOver || this.read(index) >= count;
  }

  /** Ends all waits of streams for the words from `begin` up to `end`. */
  endWaits(begin: number, end: number): void {
    this.#isOver = true;
    if (this.hostPage.isUnmapped) return;
    for (let index = begin; index < end; index += 1)
      Atomics.store(this.#words, index, END_OF_WAITS);
  }

  /** Unmaps the memory once no work here can access it. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    if (this.#fd !== undefined) closeFd(this.takeFd());
    this.hostPage.close(() => {});
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

// ---- The ring ----

/** What decides the size of a ring. */
export interface RingSize {
  readonly slots: number;
  /** Whether messages have a record: those that are taken ahead have none. */
  readonly hasRecords: boolean;
}

const recordsAt = (slots: number): number => (RingWord.filled + 2 * slots) * WORD_BYTE_LENGTH;
const ringByteLength = ({ slots, hasRecords }: RingSize): number =>
  wholePages(recordsAt(slots) + (hasRecords ? slots * RECORD_BYTE_LENGTH : 0));

/**
 * The words and records that the producer of a channel writes, and all consumers read. Message `n` is
 * in slot `n % slots`. A consumer can write here, too: send a channel only to processes that you trust.
 */
export class Ring {
  readonly words: SharedWords;
  readonly slots: number;
  readonly hasRecords: boolean;
  readonly #copies: SharedWords[] = [];
  /** What was written into the first words. */
  readonly #header = new Float64Array(RingWord.filled);

  private constructor(words: SharedWords, { slots, hasRecords }: RingSize) {
    this.words = words;
    this.slots = slots;
    this.hasRecords = hasRecords;
  }

  /** @throws SystemError */
  static create(size: RingSize): Ring {
    const ring = new Ring(SharedWords.create('cuffi-channel', ringByteLength(size)), size);
    ring.#write(RingWord.producerNamespace, localProcess().pidNamespace);
    ring.#write(RingWord.producerPid, process.pid);
    return ring;
  }

  /**
   * Creates memory with the same words for one more consumer whose devices wait. Each such consumer
   * has memory of its own, because nobody can map it any more once it is fixed. What is filled must be
   * stored into it, too. @throws SystemError
   */
  createCopy(): SharedWords {
    const copy = SharedWords.create('cuffi-channel', ringByteLength(this));
    this.#header.forEach((value, index) => {
      copy.write(index, value);
    });
    this.#copies.push(copy);
    return copy;
  }

  /** Closes memory of {@link createCopy}. */
  closeCopy(copy: SharedWords): void {
    const at = this.#copies.indexOf(copy);
    if (at >= 0) this.#copies.splice(at, 1);
    copy.close();
  }

  /** @param fd owned from now on, also if it throws @throws IpcError */
  static accept(fd: number, size: RingSize): Ring {
    const isForDevices = !size.hasRecords;
    return new Ring(SharedWords.accept(fd, ringByteLength(size), isForDevices), size);
  }

  /** How many messages were published, whether or not the work before them is done. */
  get published(): number {
    return this.words.read(RingWord.published);
  }

  publish(count: number): void {
    this.#write(RingWord.published, count);
  }

  /** How many messages there are in all; undefined while the channel is open. */
  get closedAt(): number | undefined {
    const value = this.words.read(RingWord.closedAt);
    return value > 0 && Number.isFinite(value) ? value - 1 : undefined;
  }

  closeAt(count: number): void {
    this.#write(RingWord.closedAt, count + 1);
  }

  /** Whether the producer wants to be woken up. */
  get isProducerAsleep(): boolean {
    return this.words.read(RingWord.producerSleeps) === 1;
  }

  setProducerAsleep(isAsleep: boolean): void {
    this.#write(RingWord.producerSleeps, isAsleep ? 1 : 0);
  }

  /** The producer; 0 if it is of another pid namespace. */
  get producerPid(): number {
    const isHere = this.words.read(RingWord.producerNamespace) === localProcess().pidNamespace;
    const pid = isHere ? this.words.read(RingWord.producerPid) : 0;
    return pid > 0 && pid < 2 ** 32 ? pid : 0;
  }

  /** The point that is reached when the work before a message is done. */
  filled(message: number): TimelinePoint {
    return { index: RingWord.filled + (message % this.slots), count: message + 1 };
  }

  /** Whether the work before a message is done. */
  isFilled(message: number): boolean {
    const { index, count } = this.filled(message);
    const value = this.words.read(index);
    // After the end of the producer the last value stands beside it.
    const last = value === Number.POSITIVE_INFINITY ? this.words.read(index + this.slots) : value;
    return Number.isFinite(last) && last >= count;
  }

  /**
   * Ends the waits of streams for messages that will not come: the producer does so when it closes,
   * the consumers if it dies. May be called again, also by several processes: a device of the ended
   * producer may still have written.
   */
  endWaits(): void {
    const { slots } = this;
    for (const words of [this.words, ...this.#copies]) {
      for (let index = RingWord.filled; index < RingWord.filled + slots; index += 1) {
        const value = words.read(index);
        if (Number.isFinite(value)) words.write(index + slots, Math.max(value, 0));
      }
      words.endWaits(RingWord.filled, RingWord.filled + slots);
    }
  }

  #write(index: number, value: number): void {
    this.#header[index] = value;
    this.words.write(index, value);
    for (let at = 0; at < this.#copies.length; at += 1) this.#copies[at]?.write(index, value);
  }

  /** The record of a message; undefined if messages have none. */
  record(message: number): Uint8Array | undefined {
    if (!this.hasRecords || this.words.hostPage.isUnmapped) return undefined;
    const begin = recordsAt(this.slots) + (message % this.slots) * RECORD_BYTE_LENGTH;
    return this.words.bytes.subarray(begin, begin + RECORD_BYTE_LENGTH);
  }
}

// ---- The seats ----

const seatByteLength = (slots: number): number =>
  wholePages((SeatWord.released + 3 * slots) * WORD_BYTE_LENGTH);

/** A message that is granted to one consumer. */
export interface Grant {
  readonly message: number;
  /** Whether another consumer had it before, and ended. */
  readonly redelivered: boolean;
}

/** The words that the producer and one consumer share. */
export class Seat {
  readonly words: SharedWords;
  readonly slots: number;

  private constructor(words: SharedWords, slots: number) {
    this.words = words;
    this.slots = slots;
  }

  /** @param start the first message for this consumer @throws SystemError */
  static create(slots: number, start: number): Seat {
    const seat = new Seat(SharedWords.create('cuffi-seat', seatByteLength(slots)), slots);
    seat.words.write(SeatWord.start, start);
    return seat;
  }

  /**
   * @param fd owned from now on, also if it throws
   * @param isForDevices whether devices of the producer may wait for its words
   * @throws IpcError
   */
  static accept(fd: number, slots: number, isForDevices: boolean): Seat {
    return new Seat(SharedWords.accept(fd, seatByteLength(slots), isForDevices), slots);
  }

  /** The first message for this consumer. */
  get start(): number {
    return this.words.read(SeatWord.start);
  }

  /** Whether the consumer wants to be woken up. */
  get isAsleep(): boolean {
    return this.words.read(SeatWord.asleep) === 1;
  }

  setAsleep(isAsleep: boolean): void {
    this.words.write(SeatWord.asleep, isAsleep ? 1 : 0);
  }

  /** How many grants the consumer can take, from the beginning; 0 for what is no number. */
  get wanted(): number {
    const value = this.words.read(SeatWord.wanted);
    return Number.isFinite(value) ? Math.max(value, 0) : 0;
  }

  setWanted(count: number): void {
    this.words.write(SeatWord.wanted, count);
  }

  /** How many messages were granted, from the beginning. */
  get granted(): number {
    return this.words.read(SeatWord.granted);
  }

  /** @param granted how many messages were granted before */
  grant(granted: number, { message, redelivered }: Grant): void {
    const { slots, words } = this;
    const index = SeatWord.released + slots + 2 * (granted % slots);
    words.write(index, message);
    words.write(index + 1, redelivered ? 1 : 0);
    words.write(SeatWord.granted, granted + 1);
  }

  grantAt(count: number): Grant {
    const index = SeatWord.released + this.slots + 2 * (count % this.slots);
    return { message: this.words.read(index), redelivered: this.words.read(index + 1) === 1 };
  }

  /** Whether no message will be granted any more. */
  get isFinished(): boolean {
    return this.words.read(SeatWord.isFinished) === 1;
  }

  finish(): void {
    this.words.write(SeatWord.isFinished, 1);
  }

  /** The point that is reached when the consumer has released a message. */
  released(message: number): TimelinePoint {
    return { index: SeatWord.released + (message % this.slots), count: message + 1 };
  }

  isReleased(message: number): boolean {
    return this.words.isReached(this.released(message));
  }

  /**
   * Ends the waits of streams for what the consumer will not release: the consumer does so when it
   * closes, the producer if it dies.
   */
  endWaits(): void {
    this.words.endWaits(SeatWord.released, SeatWord.released + this.slots);
  }
}
