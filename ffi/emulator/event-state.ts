/** The state of events: of one process, or shared between processes. */
import { randomBytes } from 'node:crypto';
import { type Mapping, mapShared } from '../linux/libc.ts';
import { createFixedMemfd } from './processes.ts';

/** The records of an event, and whether their streams have reached them. */
export interface EventState {
  /** Whether the last record is reached. True if the event was never recorded. */
  isDone(): boolean;
  /** Adds a record. Call the result when the stream reaches it. */
  record(): () => void;
  /** Waits for the last record: call the result until it returns true. */
  wait(): () => boolean;
  /** Destroys the event. Pending records and waits still finish. */
  close(): void;
}

/** An event of this process only. */
export class LocalEventState implements EventState {
  #last: { time: number | undefined } | undefined;

  /** When the last record was reached. Undefined if it was not. */
  get time(): number | undefined {
    return this.#last?.time;
  }

  get isRecorded(): boolean {
    return this.#last !== undefined;
  }

  isDone(): boolean {
    return this.#last === undefined || this.#last.time !== undefined;
  }

  record(): () => void {
    const record: { time: number | undefined } = { time: undefined };
    this.#last = record;
    return () => {
      record.time = performance.now();
    };
  }

  wait(): () => boolean {
    const record = this.#last;
    return () => record === undefined || record.time !== undefined;
  }

  close(): void {}
}

/**
 * An event in a page of its owner, shared with every process that has opened it. After its owner has
 * destroyed it, everything counts as done.
 */
export class SharedEventState implements EventState {
  readonly #page: EventPage;
  readonly #slot: number;
  readonly #id: number;
  readonly #release: () => void;
  #pending = 0;
  #isClosed = false;

  /** @param release called once the event is closed and no record or wait is pending */
  constructor(page: EventPage, slot: number, id: number, release: () => void) {
    this.#page = page;
    this.#slot = slot;
    this.#id = id;
    this.#release = release;
  }

  isDone(): boolean {
    return !this.#exists || this.#page.isComplete(this.#slot, this.#page.recorded(this.#slot));
  }

  record(): () => void {
    const record = this.#exists ? this.#page.addRecord(this.#slot) : 0;
    this.#pending += 1;
    return () => {
      if (this.#exists) this.#page.complete(this.#slot, record);
      this.#finish();
    };
  }

  wait(): () => boolean {
    const record = this.#page.recorded(this.#slot);
    this.#pending += 1;
    return () => {
      if (this.#exists && !this.#page.isComplete(this.#slot, record)) return false;
      this.#finish();
      return true;
    };
  }

  close(): void {
    this.#isClosed = true;
    if (this.#pending === 0) this.#release();
  }

  get #exists(): boolean {
    return this.#page.idAt(this.#slot) === this.#id;
  }

  #finish(): void {
    this.#pending -= 1;
    if (this.#isClosed && this.#pending === 0) this.#release();
  }
}

// ---- Interprocess events: the page of counters that processes share ----

/** The name of such a page's memfd. */
export const EVENTS_NAME = 'cuffi.events';

/** The most interprocess events of a process at a time. */
export const EVENT_COUNT = 4096;

const MAGIC = 0x6375_6576;

// Offsets in words of four bytes: the header, then a slot for each event.
const GENERATION = 2;
const SLOTS = 16;
const SLOT_WORDS = 4;
const RECORDED = 1;
const COMPLETED = 2;

export const EVENT_PAGE_BYTE_LENGTH: number = (SLOTS + EVENT_COUNT * SLOT_WORDS) * 4;

/**
 * For each slot the id of its event (0 if it is free), the number of records, and the last record
 * that was reached. Counters wrap around.
 */
export class EventPage {
  readonly #mapping: Mapping;
  readonly #words: Int32Array;

  constructor(fd: number) {
    this.#mapping = mapShared(fd, EVENT_PAGE_BYTE_LENGTH);
    this.#words = new Int32Array(this.#mapping.view());
  }

  /** A new page, and its descriptor. @throws SystemError */
  static create(): { readonly page: EventPage; readonly fd: number } {
    const fd = createFixedMemfd(EVENTS_NAME, EVENT_PAGE_BYTE_LENGTH);
    const page = new EventPage(fd);
    page.#words[0] = MAGIC;
    new Uint8Array(page.#words.buffer, GENERATION * 4, 8).set(randomBytes(8));
    return { page, fd };
  }

  get isValid(): boolean {
    return this.#words[0] === MAGIC;
  }

  get generation(): string {
    return Buffer.from(this.#words.buffer, GENERATION * 4, 8).toString('hex');
  }

  idAt(slot: number): number {
    return Atomics.load(this.#words, this.#at(slot)) >>> 0;
  }

  /** Assigns a slot to a new event. Id 0 frees it. */
  setIdAt(slot: number, id: number): void {
    Atomics.store(this.#words, this.#at(slot) + RECORDED, 0);
    Atomics.store(this.#words, this.#at(slot) + COMPLETED, 0);
    Atomics.store(this.#words, this.#at(slot), id | 0);
  }

  recorded(slot: number): number {
    return Atomics.load(this.#words, this.#at(slot) + RECORDED);
  }

  /** Adds a record. Returns its number. */
  addRecord(slot: number): number {
    return (Atomics.add(this.#words, this.#at(slot) + RECORDED, 1) + 1) | 0;
  }

  complete(slot: number, record: number): void {
    const at = this.#at(slot) + COMPLETED;
    for (;;) {
      const completed = Atomics.load(this.#words, at);
      if (((record - completed) | 0) <= 0) return;
      if (Atomics.compareExchange(this.#words, at, completed, record) === completed) return;
    }
  }

  isComplete(slot: number, record: number): boolean {
    return ((Atomics.load(this.#words, this.#at(slot) + COMPLETED) - record) | 0) >= 0;
  }

  /** The page must not be used afterwards. */
  unmap(): void {
    this.#mapping.unmap();
  }

  #at(slot: number): number {
    return SLOTS + slot * SLOT_WORDS;
  }
}
