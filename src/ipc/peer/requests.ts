/** Requests and their answers, of both ends of one connection. */

import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { CuffiError, IpcError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { isTurnDue } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { formatBytes, formatValue } from '../../validate.ts';
import { FrameKind } from '../wire/frames.ts';
import {
  MAX_PENDING_REQUEST_BYTE_LENGTH,
  MAX_PENDING_REQUESTS,
  MAX_QUEUED_FDS,
} from '../wire/limits.ts';
import type { ValueMessage } from '../wire/value-message.ts';
import { closeObjects, openArrival } from './arrival.ts';
import { type MessageSize, ReceiveQueue, type Recipient } from './receive-queue.ts';
import type { Session } from './session.ts';

/** What a handler gets beside the value. */
export interface RequestContext {
  /**
   * Aborts when the other end gives the request up (by its signal, its time-out, or its end), and
   * when the connection ends. The answer is dropped then.
   */
  readonly signal: AbortSignal;
  /**
   * Closes a resource once the answer was sent, or the handler has failed. An answer lives there for
   * as long as it is used, so what is made for it is closed here at once. Returns the resource.
   */
  closeAfter<T extends { close(): void }>(resource: T): T;
}

/** Handles a request: returns the answer. What it throws is thrown by the other end's `request`. */
export type RequestHandler = (value: unknown, context: RequestContext) => unknown;

/** How {@link Requests.serve} calls its handler. */
export interface ServeSettings {
  readonly handler: RequestHandler;
  /** The most handlers that run at a time. */
  readonly concurrency: number;
  /** As of `receive` for the values, and of `send` for the answers. */
  readonly stream: Stream | undefined;
}

/** Handlers that run for one call of `serve`. */
export interface Serving {
  /** Resolves when no handler runs any more: with why nothing is served any more. */
  readonly done: Promise<Error | 'stopped'>;
  /** Starts no further handler. */
  stop(): void;
}

/** What a handler threw, or a later part of its answer: anything that can be sent. */
export class HandlerFailure {
  readonly thrown: unknown;

  constructor(thrown: unknown) {
    this.thrown = thrown;
  }
}

/** Sends a message of requests. @throws as `peer.send` */
type SendMessage = (
  value: unknown,
  message: {
    readonly kind: FrameKind;
    readonly request: number;
    readonly stream?: Stream | undefined;
    /** Called with the size of the message before it is sent. May throw. */
    readonly admit?: (size: MessageSize) => void;
  },
) => Promise<void> | undefined;

/**
 * Sends requests and delivers their answers, and hands the peer's requests to a handler. Each request
 * has exactly one answer, also if it was given up.
 */
export class Requests {
  readonly #peerName: string;
  readonly #session: Session;
  readonly #send: SendMessage;
  readonly #onAwaited: () => void;
  readonly #onBroken: (error: unknown) => void;
  /** The requests of this end. */
  readonly #asked = new PendingRequests<AskedRequest>('requests wait for their answers');
  readonly #askedSize = new PendingSize();
  /** Their answers, each with its caller. */
  readonly #answers: ReceiveQueue;
  /** The requests of the peer that have no answer yet, by number. */
  readonly #received = new Map<number, ReceivedRequest>();
  readonly #receivedSize = new PendingSize();
  /** Those of them that no handler has taken, and their values, both in the order of arrival. */
  readonly #waiting: ReceivedRequest[] = [];
  readonly #values: ReceiveQueue;
  #server: Server | undefined;
  #end: Error | undefined;

  /**
   * @param peerName the peer in words
   * @param onDelivered called when an answer was delivered later than it came
   * @param onAwaited called when a handler waits for a request that has not arrived
   * @param onBroken called when an answer cannot be sent, so that the peer would wait for ever
   */
  constructor(
    peerName: string,
    session: Session,
    send: SendMessage,
    onDelivered: () => void,
    onAwaited: () => void,
    onBroken: (error: unknown) => void,
  ) {
    this.#peerName = peerName;
    this.#session = session;
    this.#send = send;
    this.#onAwaited = onAwaited;
    this.#onBroken = onBroken;
    this.#answers = new ReceiveQueue(session, onDelivered);
    this.#values = new ReceiveQueue(session, onDelivered);
  }

  /** Whether a caller waits for an answer, or a handler for a request. */
  get isAwaited(): boolean {
    return !this.#asked.isEmpty || this.#values.isAwaited;
  }

  /** Whether requests of the peer wait for a handler. */
  get hasWaiting(): boolean {
    return this.#waiting.length > 0;
  }

  /** Whether handlers wait for a request, and none runs. */
  get isIdle(): boolean {
    return this.#server?.isTaking === true && this.#server.running === 0;
  }

  /** Whether so much was answered at once that the peer should wait. It is delivered without its help. */
  get isFull(): boolean {
    return this.#answers.isFull;
  }

  /** Whether enough was delivered that reading may continue. */
  get hasRoom(): boolean {
    return this.#answers.hasRoom;
  }

  /** Whether nothing more will be delivered. */
  get isDrained(): boolean {
    return this.#answers.isDrained && this.#values.isDrained;
  }

  // ---- Requests of this end ----

  /**
   * Sends a request, and delivers its answer. Returns a function that gives it up.
   *
   * @param recipient gets a {@link HandlerFailure} for what the handler threw
   * @throws IpcError if too many requests are pending; as `peer.send`
   */
  request(value: unknown, recipient: Recipient): () => void {
    const asked: AskedRequest = { recipient, isGivenUp: false, size: undefined };
    const number = this.#asked.add(asked);
    try {
      this.#send(value, {
        kind: FrameKind.request,
        request: number,
        stream: recipient.stream,
        admit: (size) => {
          if (!this.#askedSize.add(size))
            throw new IpcError(
              `${this.#askedSize} wait for their answers already: await some of them first`,
              undefined,
              'limit-exceeded',
            );
          asked.size = size;
        },
      })?.catch(() => {});
    } catch (error) {
      this.#asked.take(number);
      this.#askedSize.remove(asked.size);
      throw error;
    }
    return () => {
      asked.isGivenUp = true;
      if (this.#asked.has(number)) this.#tellGivenUp(number);
    };
  }

  #tellGivenUp(number: number): void {
    try {
      this.#send(null, { kind: FrameKind.cancellation, request: number })?.catch(() => {});
    } catch {
      // The connection has ended, or too much waits to be sent. The answer is dropped in any case.
    }
  }

  /**
   * Delivers the answer of a request. Returns whether a caller waited for it.
   *
   * @param hasFailed whether it is what the handler threw
   * @param refusal as of {@link openArrival}
   * @throws IpcError for anything but the answer to a pending request
   */
  receiveAnswer(
    number: number,
    hasFailed: boolean,
    message: ValueMessage,
    fds: readonly number[],
    size: MessageSize,
    refusal?: IpcError,
  ): boolean {
    let asked: AskedRequest;
    try {
      asked = this.#asked.take(number);
    } catch (error) {
      discardFds(fds);
      throw error;
    }
    this.#askedSize.remove(asked.size);
    const arrival = openArrival(message, fds, this.#session, refusal);
    const objects = 'error' in arrival ? [] : arrival.objects;
    const { stream, resolve, reject } = asked.recipient;
    // Both queues are in order: the answer that comes next is for the recipient that comes next.
    this.#answers.receive({
      stream,
      resolve: (value) => {
        if (asked.isGivenUp) closeObjects(objects);
        else if (hasFailed) reject(new HandlerFailure(value));
        else resolve(value);
      },
      reject,
    });
    this.#answers.add(arrival, size);
    return true;
  }

  /**
   * Rejects a request because nobody serves the peer's requests.
   *
   * @throws IpcError for anything but the refusal of a pending request
   */
  receiveRefusal(number: number, message: ValueMessage, fds: readonly number[]): void {
    discardFds(fds);
    assertNull(message, 'a refusal');
    const asked = this.#asked.take(number);
    this.#askedSize.remove(asked.size);
    asked.recipient.reject(
      new IpcError(
        `${this.#peerName} serves no requests: it waits for values and has never called serve(). ` +
          'Serve there, or send values',
        undefined,
        'not-served',
      ),
    );
  }

  // ---- Requests of the peer ----

  /**
   * Queues a request of the peer for a handler. Returns whether one waited for it.
   *
   * @throws IpcError for a number that is in use, and for more than the peer may have pending
   */
  receiveRequest(
    number: number,
    message: ValueMessage,
    fds: readonly number[],
    size: MessageSize,
    refusal?: IpcError,
  ): boolean {
    if (this.#received.has(number) || !this.#receivedSize.add(size)) {
      discardFds(fds);
      throw new IpcError(
        this.#received.has(number)
          ? `request ${number} came twice`
          : `more came than the ${this.#receivedSize} that may wait for their answers`,
      );
    }
    const arrival = openArrival(message, fds, this.#session, refusal);
    const request = new ReceivedRequest(number, size, 'error' in arrival ? [] : arrival.objects);
    this.#received.set(number, request);
    this.#waiting.push(request);
    return this.#values.add(arrival, size);
  }

  /** Aborts the signal of a request's handler. Does nothing if the request was answered meanwhile. */
  receiveCancellation(number: number, message: ValueMessage, fds: readonly number[]): void {
    discardFds(fds);
    assertNull(message, 'a cancellation');
    this.#received.get(number)?.giveUp(`${this.#peerName} has given this request up`);
  }

  /** Refuses the requests that no handler has taken. */
  refuseWaiting(): void {
    this.#values.clear();
    for (const { number, size } of this.#waiting.splice(0)) {
      this.#received.delete(number);
      this.#receivedSize.remove(size);
      try {
        this.#send(null, { kind: FrameKind.unserved, request: number })?.catch(() => {});
      } catch (error) {
        if (!this.#end) this.#onBroken(error);
      }
    }
  }

  /** @throws CuffiError while another call serves this connection */
  serve(settings: ServeSettings): Serving {
    if (this.#server)
      throw new CuffiError(
        'this Peer is served already: have one handler tell requests apart, or end the other call of ' +
          'serve() by its signal',
      );
    const server = new Server(settings);
    this.#server = server;
    this.#takeNext(server);
    return {
      done: server.done.finally(() => {
        this.#server = undefined;
      }),
      stop: () => server.stop('stopped'),
    };
  }

  /** Takes the next request, unless as many are being handled as may be. */
  #takeNext(server: Server): void {
    if (!server.canTake) return;
    // One that waits already is delivered before this returns, unless the event loop turns first.
    server.isTaking = true;
    server.cancelTaking = this.#values.receive(
      {
        stream: server.settings.stream,
        resolve: (value) =>
          this.#begin(server, (context) => server.settings.handler(value, context)),
        reject: (error) =>
          this.#begin(server, () => {
            throw error;
          }),
      },
      isTurnDue(),
    );
    if (server.isTaking) this.#onAwaited();
  }

  /** Handles the first request that waits. */
  #begin(server: Server, handle: (context: RequestContext) => unknown): void {
    server.isTaking = false;
    const request = this.#waiting.shift();
    if (!request) {
      // No request was taken: the connection has ended.
      server.stop(this.#end as Error);
      return;
    }
    server.running += 1;
    // The queue that delivers it must be done before anything is taken from it again.
    queueMicrotask(() => {
      this.#takeNext(server);
      void this.#handle(request, handle, server.settings.stream).then(() => {
        server.running -= 1;
        server.finishIfIdle();
        this.#takeNext(server);
        if (this.isIdle) this.#onAwaited();
      });
    });
  }

  async #handle(
    request: ReceivedRequest,
    handle: (context: RequestContext) => unknown,
    stream: Stream | undefined,
  ): Promise<void> {
    let kind: FrameKind = FrameKind.response;
    let answer: unknown;
    try {
      request.takeObjects();
      answer = await handle(request);
    } catch (error) {
      kind = FrameKind.failure;
      answer = error;
    }
    await this.#answer(request, kind, answer, stream);
    request.closeResources();
  }

  async #answer(
    { number, size }: ReceivedRequest,
    kind: FrameKind,
    answer: unknown,
    stream: Stream | undefined,
  ): Promise<void> {
    if (this.#end) return;
    // Before it is sent, so that this count is never above the peer's.
    this.#received.delete(number);
    this.#receivedSize.remove(size);
    let failure: unknown;
    try {
      await this.#send(answer, { kind, request: number, stream });
      return;
    } catch (error) {
      failure = error;
    }
    try {
      // What was thrown cannot be sent, or what was returned: then that is what has failed.
      if (!this.#end)
        await this.#send(sendableError(kind === FrameKind.failure ? answer : failure), {
          kind: FrameKind.failure,
          request: number,
        });
    } catch (error) {
      if (!this.#end) this.#onBroken(error);
    }
  }

  // ---- The end ----

  /** Ends all requests. Answers that have arrived are still delivered. */
  end(reason: Error): void {
    this.#end ??= reason;
    for (const { recipient } of this.#asked.takeAll()) recipient.reject(reason);
    this.#answers.end(reason);
    // Nobody waits for the answers of the rest.
    for (const request of this.#received.values()) request.giveUp(reason);
    this.#received.clear();
    this.#waiting.length = 0;
    this.#values.clear();
    this.#values.end(reason);
  }

  /** Drops the answers that were not delivered. */
  clear(): void {
    this.#answers.clear();
  }
}

/** A request of this end. */
interface AskedRequest {
  readonly recipient: Recipient;
  isGivenUp: boolean;
  /** Undefined until it is encoded. */
  size: MessageSize | undefined;
}

/** A request of the peer, as its handler sees it. */
class ReceivedRequest implements RequestContext {
  readonly number: number;
  readonly size: MessageSize;
  /** Its GPU objects, until a handler owns them. */
  #objects: readonly object[];
  /** Made when somebody asks for the signal. */
  #controller: AbortController | undefined;
  #givenUp: unknown;
  readonly #resources: { close(): void }[] = [];

  constructor(number: number, size: MessageSize, objects: readonly object[]) {
    this.number = number;
    this.size = size;
    this.#objects = objects;
  }

  get signal(): AbortSignal {
    this.#controller ??= new AbortController();
    if (this.#givenUp !== undefined) this.#controller.abort(this.#givenUp);
    return this.#controller.signal;
  }

  // Handlers take it out of the context.
  readonly closeAfter = <T extends { close(): void }>(resource: T): T => {
    if (typeof (resource as Partial<T> | undefined)?.close !== 'function')
      throw new TypeError(
        `closeAfter takes what has a close(), such as a buffer, not ${formatValue(resource)}`,
      );
    this.#resources.push(resource);
    return resource;
  };

  /** Tells the handler that nobody waits for its answer. */
  giveUp(reason: Error | string): void {
    this.#givenUp ??= typeof reason === 'string' ? new DOMException(reason, 'AbortError') : reason;
    this.#controller?.abort(this.#givenUp);
  }

  /** Gives the objects to the handler. @throws the reason if the request was given up before */
  takeObjects(): void {
    const objects = this.#objects;
    this.#objects = [];
    if (this.#givenUp === undefined) return;
    closeObjects(objects);
    throw this.#givenUp;
  }

  closeResources(): void {
    for (const resource of this.#resources) releaseOrWarn(() => resource.close());
  }
}

/** The state of one call of `serve`. */
class Server {
  readonly settings: ServeSettings;
  readonly done: Promise<Error | 'stopped'>;
  running = 0;
  /** Whether the next request is awaited. */
  isTaking = false;
  cancelTaking: () => void = () => {};
  #stopped: Error | 'stopped' | undefined;
  #finish: (reason: Error | 'stopped') => void = () => {};

  constructor(settings: ServeSettings) {
    this.settings = settings;
    this.done = new Promise((resolve) => {
      this.#finish = resolve;
    });
  }

  get canTake(): boolean {
    return !this.#stopped && !this.isTaking && this.running < this.settings.concurrency;
  }

  stop(reason: Error | 'stopped'): void {
    this.#stopped ??= reason;
    if (this.isTaking) this.cancelTaking();
    this.isTaking = false;
    this.finishIfIdle();
  }

  finishIfIdle(): void {
    if (this.#stopped && this.running === 0) this.#finish(this.#stopped);
  }
}

/** What of one end is pending: both ends count the same, and apply the same limits. */
class PendingSize implements MessageSize {
  count = 0;
  byteLength = 0;
  fdCount = 0;

  /** Returns false if that would be too much. */
  add({ byteLength, fdCount }: MessageSize): boolean {
    if (
      this.count >= MAX_PENDING_REQUESTS ||
      this.byteLength + byteLength > MAX_PENDING_REQUEST_BYTE_LENGTH ||
      this.fdCount >= MAX_QUEUED_FDS
    )
      return false;
    this.count += 1;
    this.byteLength += byteLength;
    this.fdCount += fdCount;
    return true;
  }

  remove(size: MessageSize | undefined): void {
    if (!size) return;
    this.count -= 1;
    this.byteLength -= size.byteLength;
    this.fdCount -= size.fdCount;
  }

  toString(): string {
    return `${this.count} requests of ${formatBytes(this.byteLength)} and ${this.fdCount} file descriptors`;
  }
}

/** What waits for an answer of the peer, by number. */
export class PendingRequests<T> {
  readonly #requests = new Map<number, T>();
  readonly #what: string;
  #last = 0;

  /** @param what what there are too many of, in words */
  constructor(what: string) {
    this.#what = what;
  }

  get isEmpty(): boolean {
    return this.#requests.size === 0;
  }

  has(number: number): boolean {
    return this.#requests.has(number);
  }

  /** Adds a request and returns its number. @throws IpcError for too many */
  add(request: T): number {
    if (this.#requests.size >= MAX_PENDING_REQUESTS)
      throw new IpcError(
        `${MAX_PENDING_REQUESTS} ${this.#what} already: await some of them first`,
        undefined,
        'limit-exceeded',
      );
    // From 1 to 2^32 - 1, and then again.
    do this.#last = (this.#last % 0xffff_ffff) + 1;
    while (this.#requests.has(this.#last));
    this.#requests.set(this.#last, request);
    return this.#last;
  }

  /** Removes a request. @throws IpcError for an answer that nobody asked for */
  take(number: number): T {
    const request = this.#requests.get(number);
    if (!request) throw new IpcError('an answer came that nobody asked for');
    this.#requests.delete(number);
    return request;
  }

  /** Removes all requests. */
  takeAll(): readonly T[] {
    const requests = [...this.#requests.values()];
    this.#requests.clear();
    return requests;
  }
}

/** @throws IpcError for a message that has more than a number */
function assertNull({ objects, value }: ValueMessage, what: string): void {
  if (objects.entries.length > 0 || value.byteLength > 1)
    throw new IpcError(`${what} came with a value`);
}

/** An error that says what another value says, and can be sent whatever that is. */
function sendableError(thrown: unknown): Error {
  if (!(thrown instanceof Error)) return new Error(`the handler threw ${formatValue(thrown)}`);
  const { name, message, stack } = thrown;
  const error = new Error(String(message));
  error.name = String(name);
  error.stack = String(stack);
  return error;
}
