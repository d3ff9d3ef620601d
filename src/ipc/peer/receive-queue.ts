import type { Context } from '../../context.ts';
import type { Stream } from '../../stream.ts';
import { MAX_QUEUED_BYTE_LENGTH, MAX_QUEUED_FDS, MAX_QUEUED_VALUES } from '../protocol.ts';
import { contextOf } from '../sharing/kinds.ts';
import type { TimelinePoint } from '../timeline/words.ts';
import type { MessageSize } from '../wire/value-message.ts';
import { type Arrival, closeObjects, type ReceivedValue } from './arrival.ts';
import type { Session } from './session.ts';

/** The caller that gets a value. */
export interface Recipient {
  /** The stream that will use the objects of the value. Default: the legacy default stream. */
  readonly stream: Stream | undefined;
  resolve(value: unknown): void;
  reject(error: unknown): void;
}

/** The caller of a request. */
export interface RequestRecipient extends Recipient {
  /** Called in place of the others when the answer of a request has come that was given up. */
  readonly onDropped?: (() => void) | undefined;
}

interface QueuedArrival extends MessageSize {
  readonly arrival: Arrival;
}

/** The connection of a {@link ReceiveQueue}. */
export interface ReceiveQueueHost {
  /** Handles that values were delivered later than they arrived, and were asked for. */
  onDelivered(): void;
}

/**
 * The values that arrived and were not taken, or the callers that wait for one. Both exist only
 * while the first value is not ready: it is being built, or the peer's work on it is not done.
 */
export class ReceiveQueue {
  readonly #session: Session;
  readonly #host: ReceiveQueueHost;
  readonly #arrivals: QueuedArrival[] = [];
  readonly #recipients: Recipient[] = [];
  #byteLength = 0;
  #fdCount = 0;
  #isWaiting = false;
  /** The value that is being built over several turns of the event loop: the first in the queue. */
  #building: ReceivedValue['contents'] | undefined;
  #end: Error | undefined;

  constructor(session: Session, host: ReceiveQueueHost) {
    this.#session = session;
    this.#host = host;
  }

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
    return this.#arrivals.length === 0 && this.#recipients.length === 0 && this.#end === undefined;
  }

  /** How many values are queued. */
  get length(): number {
    return this.#arrivals.length;
  }

  /** Whether values are queued. */
  get hasArrivals(): boolean {
    return this.#arrivals.length > 0;
  }

  /** Whether a caller waits for a value that has not arrived. */
  get isAwaited(): boolean {
    return this.#recipients.length > 0 && this.#arrivals.length === 0;
  }

  /** Whether nothing is queued and nothing more will arrive. */
  get isDrained(): boolean {
    return this.#end !== undefined && this.#arrivals.length === 0;
  }

  /** Queues a value. Returns whether a caller waited for it. */
  add(arrival: Arrival, { byteLength, fdCount }: MessageSize): boolean {
    this.#arrivals.push({ arrival, byteLength, fdCount });
    this.#byteLength += byteLength;
    this.#fdCount += fdCount;
    return this.#serve();
  }

  /**
   * Requests the next value. Returns a function that cancels the request.
   *
   * @param isLater whether the event loop is to turn before the value is delivered
   */
  receive(recipient: Recipient, isLater = false): () => void {
    this.#recipients.push(recipient);
    if (isLater) setImmediate(() => this.deliver());
    else this.#serve();
    return () => {
      const at = this.#recipients.indexOf(recipient);
      if (at >= 0) this.#recipients.splice(at, 1);
    };
  }

  /** Delivers what is ready to those that wait. */
  deliver(): void {
    this.#serve();
    this.#host.onDelivered();
  }

  /** Ends the queue. What is queued can still be taken; callers after that get `reason`. */
  end(reason: Error): void {
    this.#end ??= reason;
    this.#serve();
  }

  /** Closes the objects of the values that nobody took. */
  clear(): void {
    this.#building = undefined;
    for (const { arrival } of this.#arrivals.splice(0))
      if ('objects' in arrival) closeObjects(arrival.objects);
    this.#byteLength = 0;
    this.#fdCount = 0;
    if (this.#end) this.#serve();
  }

  /** Delivers queued values to waiting callers. Returns whether any was delivered. */
  #serve(): boolean {
    let hasServed = false;
    while (this.#arrivals.length > 0 && this.#recipients.length > 0) {
      const { arrival, byteLength, fdCount } = this.#arrivals[0] as QueuedArrival;
      const recipient = this.#recipients[0] as Recipient;
      if ('error' in arrival) recipient.reject(arrival.error);
      else if (!this.#deliver(arrival, recipient)) return hasServed;
      this.#arrivals.shift();
      this.#recipients.shift();
      this.#byteLength -= byteLength;
      this.#fdCount -= fdCount;
      hasServed = true;
    }
    if (this.#end && this.#arrivals.length === 0)
      for (const recipient of this.#recipients.splice(0)) recipient.reject(this.#end);
    return hasServed;
  }

  /** Delivers the first value. Returns false if it is not ready: then it stays in the queue. */
  #deliver(value: ReceivedValue, recipient: Recipient): boolean {
    const { contents, objects, points } = value;
    if (this.#building === contents) return false;
    try {
      if (!contents.build(objects)) {
        this.#continueBuilding(contents, objects);
        return false;
      }
    } catch (error) {
      recipient.reject(error);
      closeObjects(objects);
      return true;
    }
    if (deliverOrdered(this.#session, value, recipient)) return true;
    // Later values wait with this one.
    if (!this.#isWaiting) {
      this.#isWaiting = true;
      void this.#session.whenReached(points).then(() => {
        this.#isWaiting = false;
        this.deliver();
      });
    }
    return false;
  }

  #continueBuilding(contents: ReceivedValue['contents'], objects: readonly object[]): void {
    this.#building = contents;
    setImmediate(() => {
      if (this.#building !== contents) return;
      if (!isBuilt(contents, objects)) {
        this.#continueBuilding(contents, objects);
        return;
      }
      this.#building = undefined;
      this.deliver();
    });
  }
}

/**
 * Gives a built value to its caller behind the peer's work on its objects. Returns false if the host
 * must wait for that work first.
 */
function deliverOrdered(
  session: Session,
  { contents, objects, points }: ReceivedValue,
  recipient: Recipient,
): boolean {
  try {
    if (points.length === 0 || orderBehind(session, points, objects, recipient.stream)) {
      recipient.resolve(contents.value);
      return true;
    }
    if (!session.isGone) return false;
    recipient.reject(session.unfinishedError());
  } catch (error) {
    recipient.reject(error);
  }
  closeObjects(objects);
  return true;
}

/** Makes later work on objects wait for points. Returns false if the host must wait instead. */
function orderBehind(
  { timeline, isGone }: Session,
  points: readonly TimelinePoint[],
  objects: readonly object[],
  stream: Stream | undefined,
): boolean {
  if (timeline.isReached(points)) return true;
  if (isGone) return false;
  if (stream) return timeline.wait(points, stream.context, stream);
  const contexts = new Set<Context>();
  for (const object of objects) {
    const context = contextOf(object);
    if (context) contexts.add(context);
  }
  return [...contexts].every((context) => timeline.wait(points, context, undefined));
}

/**
 * Whether nothing is left to build. The caller that takes the value gets the error of a failed
 * build.
 */
function isBuilt(contents: ReceivedValue['contents'], objects: readonly object[]): boolean {
  try {
    return contents.build(objects);
  } catch {
    return true;
  }
}
