/** Requests and their answers, of both ends of one connection: for a handler, and for the object of a descriptor. */

import { CuffiError, IpcError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { isTurnDue } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { formatBytes, formatValue, isError } from '../../validate.ts';
import type { IpcDescriptor } from '../descriptor.ts';
import {
  FrameKind,
  MAX_PENDING_REQUEST_BYTE_LENGTH,
  MAX_PENDING_REQUESTS,
  MAX_QUEUED_FDS,
} from '../protocol.ts';
import { asArray } from '../sharing/memory.ts';
import type { MessageSize } from '../wire/value-message.ts';
import { closeObjects, type UnopenedMessage } from './arrival.ts';
import type { Outgoing } from './outgoing.ts';
import { ReceiveQueue, type RequestRecipient } from './receive-queue.ts';
import type { Session } from './session.ts';
import { refusalOf, verifyExport } from './verification.ts';

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

/** The connection of {@link Requests}. */
export interface RequestsHost {
  /** Handles that answers were delivered later than they came. */
  onDelivered(): void;
  /** Handles that an answer, or a request of the peer, is awaited. */
  onAwaited(): void;
  /** Handles that an answer cannot be sent, so that the peer would wait for ever. */
  onFailure(error: unknown): void;
}

/**
 * Sends requests and delivers their answers, and hands the peer's requests to a handler. Each request
 * has exactly one answer, also if it was given up.
 */
export class Requests {
  readonly #session: Session;
  readonly #outgoing: Outgoing;
  readonly #host: RequestsHost;
  /** The requests of this end. */
  readonly #asked = new AskedRequests();
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

  constructor(session: Session, outgoing: Outgoing, host: RequestsHost) {
    this.#session = session;
    this.#outgoing = outgoing;
    this.#host = host;
    this.#answers = new ReceiveQueue(session, host);
    this.#values = new ReceiveQueue(session, host);
  }

  /** Whether a caller waits for an answer, or a handler for a request. */
  get isAwaited(): boolean {
    return !this.#asked.isEmpty || this.#values.isAwaited;
  }

  /** How many requests have no answer: of this end, and of the peer. */
  get counts(): { readonly asked: number; readonly serving: number } {
    return { asked: this.#asked.count, serving: this.#received.size };
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
  request(value: unknown, recipient: RequestRecipient): () => void {
    return this.#ask(FrameKind.request, value, new AskedRequest(recipient));
  }

  /**
   * Asks the peer for the object of one of its descriptors. Returns a function that gives it up.
   *
   * @throws IpcError if too many requests are pending; as `peer.send`
   */
  verify(descriptor: IpcDescriptor, recipient: RequestRecipient): () => void {
    const asked = new AskedRequest(recipient, descriptor);
    return this.#ask(FrameKind.verification, { ...descriptor }, asked);
  }

  #ask(kind: FrameKind, value: unknown, asked: AskedRequest): () => void {
    const number = this.#asked.add(asked);
    try {
      this.#outgoing
        .send(value, {
          kind,
          request: number,
          stream: asked.recipient.stream,
          admit: (size) => this.#asked.admit(asked, size),
        })
        ?.catch(() => {});
    } catch (error) {
      this.#asked.remove(number, asked);
      throw error;
    }
    return () => {
      asked.isGivenUp = true;
      if (this.#asked.has(number)) this.#tellGivenUp(number);
    };
  }

  #tellGivenUp(number: number): void {
    try {
      this.#outgoing.send(null, { kind: FrameKind.cancellation, request: number })?.catch(() => {});
    } catch {
      // The connection has ended, or too much waits to be sent. The answer is dropped in any case.
    }
  }

  /**
   * Delivers the answer of a request. Returns whether a caller waited for it.
   *
   * @throws IpcError for anything but the answer to a pending request; its caller waits for the end
   */
  receiveAnswer(message: UnopenedMessage): boolean {
    const number = message.request;
    // What the handler threw, or why the peer does not return the object.
    const hasFailed = message.kind === FrameKind.failure;
    const asked = this.#asked.get(number);
    const mismatch =
      asked.descriptor && refusalOf(asked.descriptor, message.contents, hasFailed, this.#session);
    this.#asked.remove(number, asked);
    const arrival = message.open(mismatch);
    const objects = 'error' in arrival ? [] : arrival.objects;
    const { descriptor, recipient } = asked;
    const { stream, resolve, reject } = recipient;
    // Both queues are in order: the answer that comes next is for the recipient that comes next.
    this.#answers.receive({
      stream,
      resolve: (value) => {
        if (asked.isGivenUp) {
          closeObjects(objects);
          recipient.onDropped?.();
        } else if (hasFailed) reject(new HandlerFailure(value));
        else resolve(descriptor ? asArray(objects[0], descriptor) : value);
      },
      reject: (error) => (asked.isGivenUp ? recipient.onDropped?.() : reject(error)),
    });
    this.#answers.add(arrival, message.size);
    return true;
  }

  /**
   * Rejects a request because nobody serves the peer's requests. Returns true: its caller waited for that.
   *
   * @throws IpcError for anything but the refusal of a pending request for a handler
   */
  receiveRefusal(message: UnopenedMessage): true {
    assertNull(message, 'a refusal');
    const number = message.request;
    const asked = this.#asked.get(number);
    if (asked.descriptor)
      throw new IpcError('a question about a descriptor was refused as if it needed a handler');
    this.#asked.remove(number, asked);
    if (asked.isGivenUp) asked.recipient.onDropped?.();
    asked.recipient.reject(
      new IpcError(
        `${this.#session.peerName} serves no requests: it waits for values and has never called serve(). ` +
          'Serve there, or send values',
        undefined,
        'not-served',
      ),
    );
    return true;
  }

  // ---- Requests of the peer ----

  /**
   * Queues a request of the peer for a handler. Returns whether one waited for it.
   *
   * @throws IpcError for a number that is in use, and for more than the peer may have pending
   */
  receiveRequest(message: UnopenedMessage): boolean {
    const { request: number, size } = message;
    this.#admit(number, size);
    const arrival = message.open();
    const request = new ReceivedRequest(number, size, 'error' in arrival ? [] : arrival.objects);
    this.#received.set(number, request);
    this.#waiting.push(request);
    return this.#values.add(arrival, size);
  }

  /**
   * Sends the object of a descriptor to the peer that requested it, at once: no handler is needed, and
   * requests for a handler do not delay it. Returns false: nobody here waited for it.
   *
   * @throws IpcError as {@link receiveRequest}, and for anything but such a request
   */
  receiveVerification({ request: number, contents, size }: UnopenedMessage): false {
    this.#admit(number, size);
    const answer = verifyExport(contents);
    const kind = answer instanceof IpcError ? FrameKind.failure : FrameKind.response;
    void this.#answer({ number, size }, kind, answer, undefined);
    return false;
  }

  /** Counts a request of the peer as pending. @throws IpcError if it may not be */
  #admit(number: number, size: MessageSize): void {
    if (this.#received.has(number)) throw new IpcError(`request ${number} came twice`);
    if (!this.#receivedSize.add(size))
      throw new IpcError(
        `too many requests are pending: ${this.#receivedSize}`,
        undefined,
        'limit-exceeded',
      );
  }

  /**
   * Aborts the signal of a request's handler. Does nothing if the request was answered meanwhile. Returns
   * false: nobody waited for it.
   */
  receiveCancellation(message: UnopenedMessage): false {
    assertNull(message, 'a cancellation');
    const reason = `${this.#session.peerName} has canceled this request`;
    this.#received.get(message.request)?.giveUp(reason);
    return false;
  }

  /** Refuses the requests that no handler has taken. */
  refuseWaiting(): void {
    this.#values.clear();
    for (const { number, size } of this.#waiting.splice(0)) {
      this.#received.delete(number);
      this.#receivedSize.remove(size);
      try {
        this.#outgoing.send(null, { kind: FrameKind.unserved, request: number })?.catch(() => {});
      } catch (error) {
        if (!this.#end) this.#host.onFailure(error);
      }
    }
  }

  /** @throws CuffiError while another call serves this connection */
  serve(settings: ServeSettings): Serving {
    if (this.#server)
      throw new CuffiError(
        'serve() is already running on this Peer: use one handler for all requests, or end the other call ' +
          'with its signal',
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
    if (server.isTaking) this.#host.onAwaited();
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
        if (this.isIdle) this.#host.onAwaited();
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
    { number, size }: Pick<ReceivedRequest, 'number' | 'size'>,
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
      await this.#outgoing.send(answer, { kind, request: number, stream });
      return;
    } catch (error) {
      failure = error;
    }
    try {
      // What was thrown cannot be sent, or what was returned: then that is what has failed.
      if (!this.#end)
        await this.#outgoing.send(sendableError(kind === FrameKind.failure ? answer : failure), {
          kind: FrameKind.failure,
          request: number,
        });
    } catch (error) {
      if (!this.#end) this.#host.onFailure(error);
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
class AskedRequest {
  readonly recipient: RequestRecipient;
  /** The descriptor whose object it asks for; undefined if it is for a handler. */
  readonly descriptor: IpcDescriptor | undefined;
  isGivenUp = false;
  /** Undefined until it is encoded. */
  size: MessageSize | undefined;

  constructor(recipient: RequestRecipient, descriptor?: IpcDescriptor) {
    this.recipient = recipient;
    this.descriptor = descriptor;
  }
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
        `closeAfter takes an object with close(), such as a buffer, not ${formatValue(resource)}`,
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

/** The requests of this end that have no answer yet, by number. */
class AskedRequests {
  readonly #requests = new Map<number, AskedRequest>();
  readonly #size = new PendingSize();
  #last = 0;

  get isEmpty(): boolean {
    return this.#requests.size === 0;
  }

  get count(): number {
    return this.#requests.size;
  }

  has(number: number): boolean {
    return this.#requests.has(number);
  }

  /** Adds a request and returns its number. @throws IpcError for too many */
  add(request: AskedRequest): number {
    if (this.#requests.size >= MAX_PENDING_REQUESTS)
      throw pendingError(`${MAX_PENDING_REQUESTS} requests`);
    // From 1 to 2^32 - 1, and then again.
    do this.#last = (this.#last % 0xffff_ffff) + 1;
    while (this.#requests.has(this.#last));
    this.#requests.set(this.#last, request);
    return this.#last;
  }

  /** Counts the size of a request. @throws IpcError for too much */
  admit(request: AskedRequest, size: MessageSize): void {
    if (!this.#size.add(size)) throw pendingError(String(this.#size));
    request.size = size;
  }

  /** @throws IpcError for a number that is not pending */
  get(number: number): AskedRequest {
    const request = this.#requests.get(number);
    if (!request)
      throw new IpcError(`received an answer to request ${number}, which is not pending`);
    return request;
  }

  remove(number: number, { size }: AskedRequest): void {
    this.#requests.delete(number);
    this.#size.remove(size);
  }

  /** Removes all requests. */
  takeAll(): readonly AskedRequest[] {
    const requests = [...this.#requests.values()];
    this.#requests.clear();
    return requests;
  }
}

const pendingError = (pending: string): IpcError =>
  new IpcError(
    `${pending} are already pending: await some of them first`,
    undefined,
    'limit-exceeded',
  );

/** @throws IpcError for a message that has more than a number */
function assertNull({ contents: { objects, value } }: UnopenedMessage, what: string): void {
  if (objects.entries.length > 0 || value.byteLength > 1)
    throw new IpcError(`${what} came with a value`);
}

/** Converts a thrown value to an error that can be sent, whatever the value is. */
function sendableError(thrown: unknown): Error {
  if (!isError(thrown)) return new Error(`the handler threw ${formatValue(thrown)}`);
  const { name, message, stack, code } = thrown as Error & { readonly code?: unknown };
  const error = new Error(String(message));
  error.name = String(name);
  error.stack = String(stack);
  return typeof code === 'string' ? Object.assign(error, { code }) : error;
}
