/** How far an event is: in this process alone, or shared with others. */
import type { EventPage } from './event-page.ts';

/** The records of an event, and whether the streams have reached them. */
export interface EventState {
  /** Whether the last record made so far is reached; true for an event that has none. */
  isDone(): boolean;
  /** Makes a record; call what it answers with when the stream gets there. */
  record(): () => void;
  /** Waits for the last record made so far: ask what it answers with until it says true. */
  wait(): () => boolean;
  /** The event is destroyed; records and waits that are under way still finish. */
  close(): void;
}

/** An event that only this process knows. */
export class LocalEventState implements EventState {
  #last: { time: number | undefined } | undefined;

  /** When the last record was reached; undefined for one that is not. */
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
 * An event in a page of its owner's, seen by every process that has opened it. What happens to
 * the event after its owner destroyed it counts as done.
 */
export class SharedEventState implements EventState {
  readonly #page: EventPage;
  readonly #slot: number;
  readonly #id: number;
  readonly #release: () => void;
  #pending = 0;
  #isClosed = false;

  /** `release` is called when the event is closed and nothing of it is under way any more. */
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
