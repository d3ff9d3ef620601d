import { MAX_WAITING_BYTE_LENGTH, MAX_WAITING_FDS, MAX_WAITING_VALUES } from '../wire/limits.ts';
import { type Arrival, closeObjects, type ReceivedValue } from './receive.ts';

interface Kept extends Size {
  readonly arrival: Arrival;
}

/** What a value that nobody took costs here. */
interface Size {
  readonly byteLength: number;
  /** How many file descriptors came with it. */
  readonly fdCount: number;
}

/** One who waits for the next value. */
interface Taker {
  /** Answers false where the value is not to be had yet: then it, and the taker, stay first. */
  resolve(received: ReceivedValue): boolean;
  reject(error: unknown): void;
}

/**
 * The values that arrived and were not taken yet, or those who wait for one: both only where the
 * first value is not to be had yet.
 */
export class Inbox {
  readonly #kept: Kept[] = [];
  readonly #takers: Taker[] = [];
  #byteLength = 0;
  #fdCount = 0;
  #end: Error | undefined;

  /** Whether the other end should wait before it sends more. */
  get isFull(): boolean {
    return (
      this.#kept.length >= MAX_WAITING_VALUES ||
      this.#byteLength >= MAX_WAITING_BYTE_LENGTH ||
      this.#fdCount >= MAX_WAITING_FDS
    );
  }

  /** Whether so little is left that more may come. */
  get hasRoom(): boolean {
    return (
      this.#kept.length <= MAX_WAITING_VALUES / 2 &&
      this.#byteLength <= MAX_WAITING_BYTE_LENGTH / 2 &&
      this.#fdCount <= MAX_WAITING_FDS / 2
    );
  }

  /** Whether nothing is there, and nobody waits, but something may come. */
  get isIdle(): boolean {
    return this.#kept.length === 0 && this.#takers.length === 0 && this.#end === undefined;
  }

  /** Whether someone waits for what has not come. */
  get isAwaited(): boolean {
    return this.#takers.length > 0 && this.#kept.length === 0;
  }

  /** Whether nothing is there, and nothing will come. */
  get isOver(): boolean {
    return this.#end !== undefined && this.#kept.length === 0;
  }

  /** Answers whether someone waited for it. */
  put(arrival: Arrival, { byteLength, fdCount }: Size): boolean {
    this.#kept.push({ arrival, byteLength, fdCount });
    this.#byteLength += byteLength;
    this.#fdCount += fdCount;
    return this.serve();
  }

  /** Asks for the next value; answers with the way to ask no more. */
  take(
    resolve: (received: ReceivedValue) => boolean,
    reject: (error: unknown) => void,
  ): () => void {
    const taker: Taker = { resolve, reject };
    this.#takers.push(taker);
    this.serve();
    return () => {
      const at = this.#takers.indexOf(taker);
      if (at >= 0) this.#takers.splice(at, 1);
    };
  }

  /** Gives out what is there to those who wait; answers whether any was. */
  serve(): boolean {
    let hasServed = false;
    while (this.#kept.length > 0 && this.#takers.length > 0) {
      const { arrival, byteLength, fdCount } = this.#kept[0] as Kept;
      const taker = this.#takers[0] as Taker;
      if ('error' in arrival) taker.reject(arrival.error);
      else if (!taker.resolve(arrival)) return hasServed;
      this.#kept.shift();
      this.#takers.shift();
      this.#byteLength -= byteLength;
      this.#fdCount -= fdCount;
      hasServed = true;
    }
    if (this.#end && this.#kept.length === 0)
      for (const taker of this.#takers.splice(0)) taker.reject(this.#end);
    return hasServed;
  }

  /** Nothing comes any more. What is there can still be taken; after it, takers get `reason`. */
  end(reason: Error): void {
    this.#end ??= reason;
    this.serve();
  }

  /** Closes what nobody took. */
  clear(): void {
    for (const { arrival } of this.#kept.splice(0))
      if ('objects' in arrival) closeObjects(arrival.objects);
    this.#byteLength = 0;
    this.#fdCount = 0;
    if (this.#end) this.serve();
  }
}
