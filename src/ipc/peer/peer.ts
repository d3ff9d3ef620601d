import { closeSocket } from '../../../ffi/linux/socket.ts';
import { UNCLONEABLE } from '../../conversions.ts';
import { checkDeadline, type WaitOptions, withDeadline } from '../../deadline.ts';
import { traceRequest } from '../../diagnostics.ts';
import { ClosedError, copyIpcError, IpcError, PeerGoneError } from '../../errors.ts';
import type { Details } from '../../inspect.ts';
import { Resource, stateKey } from '../../lifetime.ts';
import { isTurnDue, nextLoopIteration } from '../../poller.ts';
import { type Stream, streamOf } from '../../stream.ts';
import {
  assertInternal,
  checkInteger,
  checkOptions,
  formatValue,
  isError,
} from '../../validate.ts';
import { noteFirstUse } from '../first-use.ts';
import { processName } from '../identity.ts';
import { PeerProcess } from '../lease/peer-process.ts';
import { parseDescriptor } from '../sharing/descriptor-codec.ts';
import type { Opened } from '../sharing/kinds.ts';
import { Connection, type ConnectionEnd, type PeerStats } from './connection.ts';
import type { PeerCredentials } from './credentials.ts';
import type { PeerOptions } from './peer-options.ts';
import { HandlerFailure, type RequestContext, type RequestHandler } from './requests.ts';
import type { Answer, Anything, Outgoing } from './sendable.ts';

/** Options of `send` and `receive`. */
export interface TransferOptions extends WaitOptions {
  /**
   * In `send`: the stream whose work the receiver must wait for. Default: all known work; for an
   * array with its own stream, the work of that stream. In `receive`: the stream that will use the
   * objects of the value. Default: the legacy default stream, which all streams follow except those
   * made with `{ nonBlocking: true }`.
   */
  readonly stream?: Stream;
}

/** Options of {@link Peer.serve}. */
export interface ServeOptions {
  /**
   * The most handlers that run at a time; later requests wait, in order. Default: 1. A handler that
   * itself awaits a request of the other process, whose handler awaits one of this, needs more.
   */
  readonly concurrency?: number;
  /**
   * The stream that uses the objects of the requests, as of `receive`, and whose work the answers
   * wait for, as of `send`.
   */
  readonly stream?: Stream;
  /** Stops serving. Handlers that run are awaited; what nobody has taken waits for the next `serve`. */
  readonly signal?: AbortSignal;
}

/** What becomes of a request whose caller does not wait for it any longer. */
interface RequestFate {
  /** Called when the signal or the time limit gives the request up: its handler may still run. */
  onGivenUp(): void;
  /** Called when its answer has come after that, and was dropped. */
  onDropped(): void;
}

/** The parts of a peer. */
interface PeerInit extends PeerOptions {
  readonly process?: PeerProcess;
}

const DEFAULT_GRACE_MS = 2000;

/**
 * A process at the other end of a connection. Values travel both ways, with GPU objects anywhere
 * inside.
 *
 * A value is null, a boolean, number, bigint, string or undefined, binary data (typed arrays,
 * DataView, ArrayBuffer; a Buffer arrives as Uint8Array), a `DeviceArray`, a `DeviceBuffer`, a
 * `MemoryPool`, a `CudaEvent`, or a plain object or array of these. GPU memory is not copied: both
 * processes then have it. It lives until both have closed it. Work on it runs in order without
 * either host waiting: see docs/lifetime.md. The receiver owns the objects that arrive, and closes them.
 *
 * Values arrive whole and in order. What the other process sent before it ended is received before
 * the end is reported. An open peer keeps the process alive, as a socket does, and is then never
 * garbage collected.
 *
 * `Receives` is the type of what comes from there (values, requests and answers), `Sends` of what goes
 * there. They are not checked at run time: the other process may send anything.
 *
 * @example
 * const peer: Peer<Step, Step> = spawnPeer('worker.js');
 * await peer.send({ step: 1, weights: buffer });
 * for await (const { step, weights } of peer) weights.close();
 */
export class Peer<Receives = unknown, Sends = Anything>
  extends Resource
  implements AsyncIterable<Receives>
{
  /** @internal */
  readonly uncloneable = UNCLONEABLE;
  /** The other process; 0 if it is of another pid namespace. */
  readonly pid: number;
  /** The user of the other process. */
  readonly uid: number;
  /**
   * Resolves with the reason why further values cannot come. It is a {@link ClosedError} if either end was
   * closed or the other process exited without error. It is a {@link PeerGoneError} if that process
   * was killed or failed, and an {@link IpcError} if the protocol was broken. Values that came
   * before can still be received.
   */
  readonly ended: Promise<ConnectionEnd>;
  readonly #connection: Connection;

  /** @internal @param socket the peer owns it from now on, even if making the connection fails */
  constructor(
    socket: number,
    credentials: Pick<PeerCredentials, 'pid' | 'uid'>,
    init: PeerInit = {},
  ) {
    const { pid, uid } = (credentials ?? {}) as Partial<PeerCredentials>;
    // Checked before the peer owns the socket: a caller that is refused keeps its descriptor.
    const made = Number.isInteger(pid) && Number.isInteger(uid) ? credentials : undefined;
    assertInternal(made, Object, 'Peer', 'connect, listen, spawnPeer or parentPeer');
    const {
      process = processOfSocket(socket, credentials.pid),
      orphanGraceMs = DEFAULT_GRACE_MS,
      busyPollUs = 0,
      requestTimeoutMs,
    } = init;
    const connection = new Connection(socket, processName(credentials), process, orphanGraceMs);
    connection.busyPollUs = busyPollUs;
    connection.requestTimeoutMs = requestTimeoutMs;
    noteFirstUse();
    super('Peer', { release: () => connection.close() });
    connection.resource = this[stateKey];
    this.pid = credentials.pid;
    this.uid = credentials.uid;
    this.#connection = connection;
    connection.setReferencedPeer(this);
    // Other than through that, the connection does not hold the peer: one that is not referenced, or
    // has ended, is released if the program drops it.
    const weak = new WeakRef(this);
    connection.onDrainedAfterEnd = () => weak.deref()?.close();
    this.ended = new Promise((resolve) => {
      connection.onEnd = resolve;
    });
  }

  /**
   * Sends a value. Resolves when the kernel has all of it, so that it arrives even if this process
   * ends. While the other end does not read, sending waits. The contents are taken before this call
   * returns. Aborting stops the wait; the value is still sent.
   *
   * @throws TypeError for what cannot be sent, with its path: `value.model.layers[3] is a WeakMap …`
   * @throws RangeError above 16 MiB of plain data, 131,072 typed arrays, 131,072 Maps, Sets and
   * errors, 64 levels, 4096 GPU objects
   * @throws IpcError for GPU objects that cannot be shared, and for more than 1024 unsent values; with
   * the code `not-received` if the other end serves requests and has never received
   * @throws ClosedError if either end is closed, PeerGoneError if the other process was killed or
   * has failed
   */
  async send<V>(value: Outgoing<Sends, V>, options?: TransferOptions): Promise<void> {
    const { deadline, stream } = checkTransfer(options, 'peer.send');
    this.assertOpen();
    deadline.signal?.throwIfAborted();
    const sending = this.#connection.send(value, stream);
    if (!sending) {
      if (isTurnDue()) await nextLoopIteration();
      return;
    }
    // A getter in the value may have aborted the signal. Then nobody awaits this promise.
    sending.catch(() => {});
    try {
      await withDeadline<void>(
        deadline,
        `sending to ${this.#connection.peerName}`,
        (resolve, reject) => {
          sending.then(resolve, reject);
          return () => {};
        },
        () => this.#connection.sendHint,
      );
    } catch (error) {
      throw errorForCall(error);
    }
  }

  /**
   * Receives the next value.
   *
   * @throws IpcError if the GPU objects of a value cannot be opened; later values can still be
   * received. Also, permanently, if the other end broke the protocol
   * @throws ClosedError after the end, whichever side closed; PeerGoneError if the other process
   * was killed or has failed. Each call throws an error of its own; `cause` is the common one
   */
  async receive(options?: TransferOptions): Promise<Receives> {
    const { deadline, stream } = checkTransfer(options, 'peer.receive');
    this.assertOpen();
    try {
      return await this.#take(deadline, stream);
    } catch (error) {
      throw errorForCall(error);
    }
  }

  /**
   * Sends a request to the handler that the other process has given to {@link serve}, and resolves
   * with its answer. Requests and values do not mix: no loop sees a request. Work on GPU objects is
   * ordered both ways as by `send` and `receive`; the receiver owns what the answer has.
   *
   * Aborting, or the time-out, aborts the handler's signal, and drops its answer. Without `timeoutMs`, the
   * peer's `requestTimeoutMs` counts.
   *
   * @param options `stream` orders the request, as of {@link send}, and uses the answer
   * @throws what the handler threw: an error of the same class, with its own `stack`, to which the
   * stack of this call is added
   * @throws IpcError with the code `not-served` if the other end waits for values and has never served;
   * with `limit-exceeded` if 1024 requests, or 64 MiB, wait for their answers;
   * ClosedError and PeerGoneError if the connection ends before the answer; as {@link send}
   * @example
   * const labels = await peer.request({ image: buffer }, { timeoutMs: 1000 });
   */
  async request<V>(value: Outgoing<Sends, V>, options?: TransferOptions): Promise<Receives> {
    // Awaited: an error then has the line of this call in its stack.
    return await this.ask(value, options);
  }

  /** @internal As {@link request}, and says what becomes of a request that was given up. */
  ask(value: unknown, options?: TransferOptions, fate?: RequestFate): Promise<Receives> {
    return traceRequest(this.pid, () => this.#ask(value, options, fate));
  }

  async #ask(value: unknown, options?: TransferOptions, fate?: RequestFate): Promise<Receives> {
    const { deadline, stream } = checkTransfer(options, 'peer.request');
    this.assertOpen();
    const connection = this.#connection;
    const operation = `a request to ${connection.peerName}`;
    const { requestTimeoutMs: timeoutMs } = connection;
    const limited = timeoutMs === undefined ? deadline : { timeoutMs, ...deadline };
    try {
      return (await withDeadline<unknown>(
        limited,
        operation,
        (resolve, reject) => {
          const onDropped = fate?.onDropped;
          const giveUp = connection.request(value, { resolve, reject, stream, onDropped });
          return () => {
            fate?.onGivenUp();
            giveUp();
          };
        },
        () => connection.requestHint,
      )) as Receives;
    } catch (error) {
      if (error instanceof HandlerFailure) throw failureForCall(error, connection.peerName);
      throw errorForCall(error);
    }
  }

  /**
   * Handles the requests of the other process until the connection ends. Then it resolves, when the
   * last handler has. Requests that came before wait for this call, unless this end waited for a value
   * before, which refuses them. What a handler returns, or its
   * Promise, is the answer; what it throws is thrown by the other end's {@link request}.
   *
   * A handler owns the GPU objects of its request. `context.closeAfter(resource)` closes one when the
   * answer was sent, which is also how a buffer that was made for the answer is given up here.
   *
   * @throws PeerGoneError if the other process was killed or has failed; IpcError if it broke the
   * protocol; the reason of the signal; CuffiError if another call serves this peer
   * @example
   * await parentPeer().serve(async ({ image }, { signal, closeAfter }) => {
   *   closeAfter(image);
   *   return { labels: await classify(image, signal) };
   * });
   */
  async serve(
    handler: (value: Receives, context: RequestContext) => Answer<Sends>,
    options?: ServeOptions,
  ): Promise<void> {
    const { signal, stream, concurrency } = checkServe(handler, options);
    this.assertOpen();
    signal?.throwIfAborted();
    const connection = this.#connection;
    const { done, stop } = connection.serve({
      handler: handler as RequestHandler,
      concurrency,
      stream,
    });
    signal?.addEventListener('abort', stop);
    const reason = await done;
    signal?.removeEventListener('abort', stop);
    if (reason === 'stopped') throw signal?.reason;
    if (!(reason instanceof ClosedError)) throw errorForCall(reason);
  }

  /**
   * Opens an object of the other process by a descriptor that did not come over this connection
   * (`getIpcHandle`, `exportIpc`). The other process is asked first whether the object still exists
   * and is the same. The object then lives until it is closed here, like one that was sent. The
   * answer comes behind the values that were sent before.
   *
   * A descriptor alone cannot tell: the driver may reuse the handle of freed memory for the next
   * allocation.
   *
   * Aborting, or the time-out, drops the answer, and closes the object if it still comes.
   *
   * @throws IpcError, whose `code` is `exporter-gone` if the object no longer exists, and `not-supported`
   * if the other end is of Python, which confirms no descriptors. Also if the other end returns another
   * object, which is not opened; with `limit-exceeded` as {@link request}, among whose requests it counts;
   * ClosedError and PeerGoneError as {@link receive}
   * @example
   * const buffer = await peer.open(descriptor);
   */
  async open(descriptor: unknown, options?: TransferOptions): Promise<Opened> {
    const { deadline, stream } = checkTransfer(options, 'peer.open');
    this.assertOpen();
    const sound = parseDescriptor(descriptor);
    const { peerName } = this.#connection;
    if (this.pid > 0 && sound.pid !== this.pid)
      throw new IpcError(`the descriptor comes from process ${sound.pid}, not from ${peerName}`);
    try {
      return (await withDeadline<unknown>(
        deadline,
        `asking ${peerName} whether the object still exists`,
        (resolve, reject) => this.#connection.verify(sound, { resolve, reject, stream }),
      )) as Opened;
    } catch (error) {
      throw errorForCall(error);
    }
  }

  /**
   * Iterates over the values until the end. An orderly end ends the loop; the loop throws a
   * PeerGoneError if the other process was killed or has failed. Leaving the loop leaves the peer
   * open.
   */
  [Symbol.asyncIterator](): AsyncIterableIterator<Receives> {
    const iterator: AsyncIterableIterator<Receives> = {
      next: () => this.#next(),
      [Symbol.asyncIterator]: () => iterator,
    };
    return iterator;
  }

  /** What it has sent and received so far, and what waits. Also after the end. */
  stats(): PeerStats {
    return this.#connection.stats();
  }

  /** Makes the open peer keep the process alive, as it does from the start. */
  ref(): void {
    this.#connection.setReferencedPeer(this);
  }

  /**
   * Allows the process to exit while the peer is open. Hold the peer then: garbage collection closes
   * one that the program has dropped.
   */
  unref(): void {
    this.#connection.setReferencedPeer(undefined);
  }

  /** @internal */
  get connection(): Connection {
    return this.#connection;
  }

  /** @throws ClosedError that says which end closed; IpcError if the protocol was broken */
  override assertOpen(): void {
    if (!this.closed) return;
    const { end } = this.#connection;
    throw end ? errorForCall(end) : this.closedError();
  }

  /** @internal */
  protected override describe(): Details {
    return [
      this.pid > 0 ? `process ${this.pid}` : 'process of another pid namespace',
      !this.closed && this.#connection.end !== undefined && 'ended',
    ];
  }

  #take(deadline: WaitOptions, stream?: Stream): Promise<Receives> {
    const connection = this.#connection;
    const operation = `receiving from ${connection.peerName}`;
    return withDeadline<unknown>(
      deadline,
      operation,
      (resolve, reject) => connection.receive({ resolve, reject, stream }),
      () => connection.silenceHint,
    ) as Promise<Receives>;
  }

  async #next(): Promise<IteratorResult<Receives, undefined>> {
    try {
      return { done: false, value: await this.#take({}) };
    } catch (error) {
      const { end } = this.#connection;
      if (error === end && end instanceof ClosedError) return { done: true, value: undefined };
      throw errorForCall(error);
    }
  }
}

/**
 * Returns an error for one call: of the same class as the common reason, which is its `cause`, and
 * with the stack of the awaiting caller. Errors of the caller's own making are returned unchanged.
 */
function errorForCall(reason: unknown): unknown {
  const error = copyError(reason);
  if (error) Error.captureStackTrace(error, errorForCall);
  return error ?? reason;
}

/** Returns what a handler threw. An error gets the stack of the awaiting caller behind its own. */
function failureForCall({ thrown }: HandlerFailure, peerName: string): unknown {
  if (!isError(thrown)) return thrown;
  const here = { stack: '' };
  Error.captureStackTrace(here, failureForCall);
  const frames = here.stack.split('\n').slice(1).join('\n');
  thrown.stack = `${thrown.stack ?? thrown}\n    in ${peerName}, which served the request\n${frames}`;
  return thrown;
}

function copyError(reason: unknown): Error | undefined {
  if (reason instanceof PeerGoneError) return new PeerGoneError(reason.message, reason);
  if (reason instanceof ClosedError) return new ClosedError(reason.message);
  return reason instanceof IpcError ? copyIpcError(reason) : undefined;
}

/** @throws SystemError; then the socket is closed */
function processOfSocket(socket: number, pid: number): PeerProcess {
  try {
    return PeerProcess.ofSocket(socket, pid);
  } catch (error) {
    closeSocket(socket);
    throw error;
  }
}

function checkServe(
  handler: unknown,
  options: ServeOptions | undefined,
): { concurrency: number; stream: Stream | undefined; signal: AbortSignal | undefined } {
  if (typeof handler !== 'function')
    throw new TypeError(`peer.serve takes a handler function, not ${formatValue(handler)}`);
  const {
    concurrency = 1,
    stream,
    signal,
  } = checkOptions(options, ['concurrency', 'stream', 'signal'], 'peer.serve');
  if (concurrency !== Number.POSITIVE_INFINITY) checkInteger(concurrency, 'concurrency', 1);
  const { deadline, stream: ordered } = checkTransfer(
    { ...(stream && { stream }), ...(signal && { signal }) },
    'peer.serve',
  );
  return { concurrency, stream: ordered, signal: deadline.signal };
}

function checkTransfer(
  options: TransferOptions | undefined,
  call: string,
): { readonly deadline: WaitOptions; readonly stream?: Stream | undefined } {
  // Most calls have no options.
  if (options === undefined) return { deadline: {} };
  const { stream, signal, timeoutMs } = checkOptions(
    options,
    ['signal', 'timeoutMs', 'stream'],
    call,
  );
  const ordered = streamOf(stream);
  ordered?.assertOpen();
  return { deadline: checkDeadline({ signal, timeoutMs }, call), stream: ordered };
}
