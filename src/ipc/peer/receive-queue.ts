import { MAX_QUEUED_BYTE_LENGTH, MAX_QUEUED_FDS, MAX_QUEUED_VALUES } from '../wire/limits.ts';
import { type Arrival, closeObjects, type ReceivedValue } from './receive.ts';

interface QueuedArrival extends QueuedSize {
  readonly arrival: Arrival;
}

/** What a value that nobody took costs here. */
interface QueuedSize {
  readonly byteLength: number;
  /** How many file descriptors came with it. */
  readonly fdCount: number;
}

/** One who waits for the next value. */
interface QueuedReceive {
  /** Answers false where the value is not to be had yet: then it, and the taker, stay first. */
  resolve(received: ReceivedValue): boolean;
  reject(error: unknown): void;
}

/**
 * The values that arrived and were not taken yet, or those who wait for one: both only where the
 * first value is not to be had yet.
 */
export class ReceiveQueue {
  readonly #arrivals: QueuedArrival[] = [];
  readonly #pendingReceives: QueuedReceive[] = [];
  #byteLength = 0;
  #fdCount = 0;
  #end: Error | undefined;

  /** Whether the other end should wait before it sends more. */
  get isFull(): boolean {
    return (
      this.#arrivals.length >= MAX_QUEUED_VALUES ||
      this.#byteLength >= MAX_QUEUED_BYTE_LENGTH ||
      this.#fdCount >= MAX_QUEUED_FDS
    );
  }

  /** Whether so little is left that more may come. */
  get hasRoom(): boolean {
    return (
      this.#arrivals.length <= MAX_QUEUED_VALUES / 2 &&
      this.#byteLength <= MAX_QUEUED_BYTE_LENGTH / 2 &&
      this.#fdCount <= MAX_QUEUED_FDS / 2
    );
  }

  /** Whether nothing is there, and nobody waits, but something may come. */
  get isIdle(): boolean {
    return (
      this.#arrivals.length === 0 && this.#pendingReceives.length === 0 && this.#end === undefined
    );
  }

  /** Whether someone waits for what has not come. */
  get isAwaited(): boolean {
    return this.#pendingReceives.length > 0 && this.#arrivals.length === 0;
  }

  /** Whether nothing is there, and nothing will come. */
  get isDrained(): boolean {
    return this.#end !== undefined && this.#arrivals.length === 0;
  }

  /** Answers whether someone waited for it. */
  add(arrival: Arrival, { byteLength, fdCount }: QueuedSize): boolean {
    this.#arrivals.push({ arrival, byteLength, fdCount });
    this.#byteLength += byteLength;
    this.#fdCount += fdCount;
    return this.serve();
  }

  /** Asks for the next value; answers with the way to ask no more. */
  addReceive(
    resolve: (received: ReceivedValue) => boolean,
    reject: (error: unknown) => void,
  ): () => void {
    const receive: QueuedReceive = { resolve, reject };
    this.#pendingReceives.push(receive);
    this.serve();
    return () => {
      const at = this.#pendingReceives.indexOf(receive);
      if (at >= 0) this.#pendingReceives.splice(at, 1);
    };
  }

  /** Gives out what is there to those who wait; answers whether any was. */
  serve(): boolean {
    let hasServed = false;
    while (this.#arrivals.length > 0 && this.#pendingReceives.length > 0) {
      const { arrival, byteLength, fdCount } = this.#arrivals[0] as QueuedArrival;
      const taker = this.#pendingReceives[0] as QueuedReceive;
      if ('error' in arrival) taker.reject(arrival.error);
      else if (!taker.resolve(arrival)) return hasServed;
      this.#arrivals.shift();
      this.#pendingReceives.shift();
      this.#byteLength -= byteLength;
      this.#fdCount -= fdCount;
      hasServed = true;
    }
    if (this.#end && this.#arrivals.length === 0)
      for (const taker of this.#pendingReceives.splice(0)) taker.reject(this.#end);
    return hasServed;
  }

  /** Nothing comes any more. What is there can still be taken; after it, takers get `reason`. */
  end(reason: Error): void {
    this.#end ??= reason;
    this.serve();
  }

  /** Closes what nobody took. */
  clear(): void {
    for (const { arrival } of this.#arrivals.splice(0))
      if ('objects' in arrival) closeObjects(arrival.objects);
    this.#byteLength = 0;
    this.#fdCount = 0;
    if (this.#end) this.serve();
  }
}
