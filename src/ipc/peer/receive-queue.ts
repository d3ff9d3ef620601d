import { MAX_QUEUED_BYTE_LENGTH, MAX_QUEUED_FDS, MAX_QUEUED_VALUES } from '../wire/limits.ts';
import { type Arrival, closeObjects, type ReceivedValue } from './receive.ts';

interface QueuedArrival extends QueuedSize {
  readonly arrival: Arrival;
}

/** What a queued value counts toward the limits. */
interface QueuedSize {
  readonly byteLength: number;
  /** How many file descriptors came with it. */
  readonly fdCount: number;
}

/** A caller that waits for the next value. */
interface QueuedReceive {
  /** Returns false if the value is not ready. The value and the caller then stay first. */
  resolve(received: ReceivedValue): boolean;
  reject(error: unknown): void;
}

/**
 * The values that arrived and were not taken, or the callers that wait for one. Both exist only
 * while the first value is not ready.
 */
export class ReceiveQueue {
  readonly #arrivals: QueuedArrival[] = [];
  readonly #pendingReceives: QueuedReceive[] = [];
  #byteLength = 0;
  #fdCount = 0;
  #end: Error | undefined;

  /** Whether the sender should wait before it sends more. */
  get isFull(): boolean {
    return (
      this.#arrivals.length >= MAX_QUEUED_VALUES ||
      this.#byteLength >= MAX_QUEUED_BYTE_LENGTH ||
      this.#fdCount >= MAX_QUEUED_FDS
    );
  }

  /** Whether enough was taken that reading may continue. */
  get hasRoom(): boolean {
    return (
      this.#arrivals.length <= MAX_QUEUED_VALUES / 2 &&
      this.#byteLength <= MAX_QUEUED_BYTE_LENGTH / 2 &&
      this.#fdCount <= MAX_QUEUED_FDS / 2
    );
  }

  /** Whether nothing is queued and nobody waits, but more may arrive. */
  get isIdle(): boolean {
    return (
      this.#arrivals.length === 0 && this.#pendingReceives.length === 0 && this.#end === undefined
    );
  }

  /** Whether a caller waits for a value that has not arrived. */
  get isAwaited(): boolean {
    return this.#pendingReceives.length > 0 && this.#arrivals.length === 0;
  }

  /** Whether nothing is queued and nothing more will arrive. */
  get isDrained(): boolean {
    return this.#end !== undefined && this.#arrivals.length === 0;
  }

  /** Queues a value. Returns whether a caller waited for it. */
  add(arrival: Arrival, { byteLength, fdCount }: QueuedSize): boolean {
    this.#arrivals.push({ arrival, byteLength, fdCount });
    this.#byteLength += byteLength;
    this.#fdCount += fdCount;
    return this.serve();
  }

  /** Requests the next value. Returns a function that cancels the request. */
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

  /** Delivers queued values to waiting callers. Returns whether any was delivered. */
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

  /** Ends the queue. What is queued can still be taken; callers after that get `reason`. */
  end(reason: Error): void {
    this.#end ??= reason;
    this.serve();
  }

  /** Closes the objects of the values that nobody took. */
  clear(): void {
    for (const { arrival } of this.#arrivals.splice(0))
      if ('objects' in arrival) closeObjects(arrival.objects);
    this.#byteLength = 0;
    this.#fdCount = 0;
    if (this.#end) this.serve();
  }
}
