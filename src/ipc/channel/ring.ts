/** The memory of a channel besides its slots: a ring that the producer writes, and a seat for each consumer. */

import {
  PAGE_BYTE_LENGTH,
  RECORD_BYTE_LENGTH,
  RingWord,
  SeatWord,
  WORD_BYTE_LENGTH,
} from '../protocol.ts';
import { SharedWords, type TimelinePoint } from '../timeline/words.ts';

const wholePages = (byteLength: number): number =>
  Math.ceil(byteLength / PAGE_BYTE_LENGTH) * PAGE_BYTE_LENGTH;

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
    ring.words.sign(RingWord.producerPid, RingWord.producerNamespace);
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
    copy.sign(RingWord.producerPid, RingWord.producerNamespace);
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
    const options = { byteLength: ringByteLength(size), isForDevices: !size.hasRecords };
    return new Ring(SharedWords.accept(fd, 'channel', options), size);
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
    return this.words.signer(RingWord.producerPid, RingWord.producerNamespace);
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
    if (!this.hasRecords || this.words.isUnmapped) return undefined;
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
    const options = { byteLength: seatByteLength(slots), isForDevices };
    return new Seat(SharedWords.accept(fd, 'channel', options), slots);
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

  /** How many grants the consumer can take, from the beginning; 0 for an invalid number. */
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
