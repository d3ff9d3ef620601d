import { types } from 'node:util';
import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { closeFd, isShortage, SystemError } from '../../../ffi/linux/libc.ts';
import { closeSocket } from '../../../ffi/linux/socket.ts';
import { isMainThread } from '../../../ffi/thread.ts';
import {
  ClosedError,
  CuffiError,
  IpcError,
  type PeerGoneError,
  prefixMessage,
} from '../../errors.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import { closedMessage, type ResourceState } from '../../lifetime.ts';
import { IpcHandle } from '../../memory/manager/ipc-handle.ts';
import { isTurnDue } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { messageOf } from '../../validate.ts';
import { ByteWriter } from '../bytes.ts';
import type { IpcDescriptor } from '../descriptor.ts';
import type { PeerProcess } from '../lease/peer-process.ts';
import { FrameKind, HEADER_BYTE_LENGTH, MAX_CONTROL_BYTE_LENGTH } from '../protocol.ts';
import { IpcArrayHandle, IpcMemoryHandle } from '../sharing/handle.ts';
import type { EncodedExport } from '../sharing/kind.ts';
import { isShareable, type Shareable } from '../sharing/kinds.ts';
import { exportForAnyPeer } from '../sharing/marshal.ts';
import { ReadyExport } from '../sharing/ready.ts';
import { BusyPoller } from '../wire/busy-poll.ts';
import {
  type ControlBlock,
  emptyControlBlock,
  readControlMessage,
  writeControlBlock,
} from '../wire/control-block.ts';
import { FramedSocket, type FramedSocketHandler, type MessageType } from '../wire/framed-socket.ts';
import type { Message } from '../wire/frames.ts';
import { QUEUED_OBJECT_BYTE_LENGTH } from '../wire/limits.ts';
import {
  encodeValue,
  formatPath,
  type PlacedObject,
  type TransferableObjects,
} from '../wire/value-encoder.ts';
import { type ValueMessage, ValueMessageReader } from '../wire/value-message.ts';
import { openArrival } from './arrival.ts';
import { Readiness } from './readiness.ts';
import { type MessageSize, ReceiveQueue, type Recipient } from './receive-queue.ts';
import { Requests, type ServeSettings, type Serving } from './requests.ts';
import { type LeasedObjects, Session } from './session.ts';

/** Why a connection has ended. */
export type ConnectionEnd = ClosedError | PeerGoneError | IpcError;

/**
 * `open`: values travel both ways. `closing`: no values travel; the socket stays open for control
 * messages while leases are in use. `closed`: the socket is closed.
 */
type State = 'open' | 'closing' | 'closed';

/** What happens to a connection. */
type ConnectionEvent = keyof typeof TRANSITIONS;

/** What the connection then does: one of its methods below. */
type Action = 'begin closing' | 'close if unused' | 'close' | 'await exit' | 'nothing';

/** What each event does in each state. Only this table decides it. */
const TRANSITIONS = {
  /** This end was closed, or its thread ends in an orderly way. */
  'closed here': { open: 'begin closing', closing: 'nothing', closed: 'nothing' },
  /** The peer says that it has closed its end. */
  'closed by peer': { open: 'begin closing', closing: 'nothing', closed: 'nothing' },
  /** A lease ended, a message was sent, or the peer's time to read is over. */
  'less in use': { open: 'nothing', closing: 'close if unused', closed: 'nothing' },
  /** The socket of the peer is closed, and all that it sent was read. */
  'socket ended': { open: 'await exit', closing: 'close', closed: 'nothing' },
  /** The reason of that end is known, or it is not known in time. */
  'end explained': { open: 'close', closing: 'nothing', closed: 'nothing' },
  /** The peer broke the protocol, the socket failed, or a worker thread ends. */
  failed: { open: 'close', closing: 'close', closed: 'nothing' },
} as const satisfies Record<string, Record<State, Action>>;

/** The events by which the other end ends a connection, in whichever way. */
const BY_PEER: ReadonlySet<ConnectionEvent> = new Set(['closed by peer', 'end explained']);

/**
 * How long a closed connection without leases waits until the peer has read the messages that are
 * being sent. It keeps the process alive that long.
 */
const CLOSE_TIMEOUT_MS = 2000;
/** The interval of retries when no descriptor was left to send a control message. */
const RETRY_MS = 5;
/**
 * How long to wait for the end of a process whose socket closed without a control message. Only the
 * end of the process tells a crash from a close.
 */
const MAX_EXIT_MS = 2000;

/**
 * The connections of this thread whose socket is open. Each has its peer while that keeps the process
 * alive: such a peer is never garbage collected.
 */
const connections = new Map<Connection, object | undefined>();

process.on('exit', (code) => {
  for (const connection of connections.keys()) connection.onThreadExit(code === 0);
});

/** One end of a connection: sends values, and receives them. */
export class Connection implements FramedSocketHandler {
  /** The peer in words, such as `process 123`. */
  readonly peerName: string;
  readonly #poller: BusyPoller;
  readonly #session: Session;
  readonly #socket: FramedSocket;
  readonly #receiveQueue: ReceiveQueue;
  readonly #requests: Requests;
  readonly #readiness: Readiness;
  #state: State = 'open';
  #end: ConnectionEnd | undefined;
  /** Why nothing is read at the moment. */
  readonly #held = { byFullQueue: false, byHostWait: false, byLongValue: false };
  #isExitAwaited = false;
  /** Finds out why a child could not run; undefined for other peers. */
  #findFault: (() => string | undefined) | undefined;
  /** What a child calls for its connection. */
  #parentCall = '';
  /** The state of what the user of this end holds, which says what closed it. */
  resource: ResourceState | undefined;
  /** Whether the other end ended the connection, or its process did. */
  isEndedByPeer = false;
  #isDoneSent = false;
  /** Set while sending control messages is scheduled. */
  #controlImmediate: NodeJS.Immediate | undefined;
  #controlRetry: NodeJS.Timeout | undefined;
  #closeTimer: NodeJS.Timeout | undefined;
  #exitTimer: NodeJS.Timeout | undefined;
  /** Called once nothing can be sent and nothing more arrives. */
  onEnd: ((reason: ConnectionEnd) => void) | undefined;
  /** Called once nothing can be sent and all received values were taken. */
  onDrainedAfterEnd: (() => void) | undefined;

  /** @param fd the socket. This connection owns it from now on, even if this throws */
  constructor(fd: number, peerName: string, process: PeerProcess, graceMs: number) {
    this.peerName = peerName;
    try {
      this.#session = new Session(process, peerName, graceMs, (...message) =>
        this.#postControl(...message),
      );
    } catch (error) {
      closeSocket(fd);
      throw error;
    }
    this.#receiveQueue = new ReceiveQueue(this.#session, () => this.#onDelivered());
    try {
      this.#socket = new FramedSocket(fd, this);
    } catch (error) {
      this.#session.end();
      throw error;
    }
    this.#requests = new Requests(
      peerName,
      this.#session,
      (value, message) => this.#send(value, message),
      () => this.#onDelivered(),
      () => {
        this.#beginPolling();
        this.#readiness.check();
      },
      (error) => this.onFailure(error),
    );
    const [values, requests] = [this.#receiveQueue, this.#requests];
    this.#readiness = new Readiness(peerName, {
      get hasValues() {
        return values.hasArrivals;
      },
      get hasRequests() {
        return requests.hasWaiting;
      },
      get waitsForValue() {
        return values.isAwaited;
      },
      get waitsForRequest() {
        return requests.isIdle;
      },
      tell: (begun) => this.#tellBegun(begun),
      refuseRequests: () => requests.refuseWaiting(),
      rejectUnsentValues: (error) => this.#socket.sendQueue.rejectUnstarted(error, FrameKind.value),
    });
    this.#poller = new BusyPoller(this.#socket, {
      isAwaited: () => this.#receiveQueue.isAwaited || this.#requests.isAwaited,
      sendControl: () => this.#controlImmediate && this.#sendControl(),
    });
    this.#session.onControlPending = () => {
      this.#controlImmediate ??= setImmediate(() => this.#sendControl());
    };
    this.#session.onGone = () => this.#onPeerGone();
    if (this.#session.isGone) setImmediate(() => this.#onPeerGone());
    connections.set(this, undefined);
  }

  /** Why the connection ended; a ClosedError if it was closed in an orderly way. */
  get end(): ConnectionEnd | undefined {
    return this.#end;
  }

  /** For how many microseconds a caller that waits is polled for before the thread sleeps. */
  set busyPollUs(durationUs: number) {
    this.#poller.durationUs = durationUs;
  }

  /**
   * Makes the open connection keep the process alive, and the peer from being garbage collected: a
   * program that only awaits what the peer does need not hold it, as with a socket of Node.
   *
   * @param peer undefined if the connection need not keep the process alive
   */
  setReferencedPeer(peer: object | undefined): void {
    if (this.#state !== 'open') return;
    connections.set(this, peer);
    this.#socket.setReferenced(peer !== undefined);
  }

  /**
   * Announces that the peer is a child of this process, so that its exit status will be known.
   *
   * @param findFault returns why the child could not run, if it finds a reason
   * @param parentCall what the child calls for its connection
   */
  awaitExit(findFault: () => string | undefined, parentCall: string): void {
    this.#isExitAwaited = true;
    this.#findFault = findFault;
    this.#parentCall = parentCall;
  }

  /** What is probably wrong with a child that has not sent anything. */
  get silenceHint(): string | undefined {
    return this.#findFault && !this.#socket.hasMet
      ? (this.#findFault() ?? `it has sent nothing yet: does it call ${this.#parentCall}?`)
      : undefined;
  }

  /** Why a request may have no answer yet, for its time-out. */
  get requestHint(): string | undefined {
    return this.silenceHint ?? this.#readiness.requestHint;
  }

  /** Why a value may not be sent yet, for its time-out. */
  get sendHint(): string | undefined {
    return (
      this.silenceHint ??
      this.#readiness.sendHint ??
      (this.#socket.sendQueue.isAwaitingAck
        ? 'the process that owns a forwarded object has not confirmed that it keeps it'
        : undefined)
    );
  }

  // ---- Sending ----

  /**
   * Sends a value at once (then returns undefined), or queues it until there is room.
   *
   * @throws TypeError, RangeError as {@link encodeValue}; IpcError for GPU objects that cannot be
   * shared; ClosedError after the end
   */
  send(value: unknown, stream: Stream | undefined): Promise<void> | undefined {
    if (!this.#end) this.#readiness.checkSend();
    const sending = this.#send(value, { kind: FrameKind.value, request: 0, stream });
    return this.#readiness.confirm(sending);
  }

  /** As {@link Requests.verify}. */
  verify(descriptor: IpcDescriptor, recipient: Recipient): () => void {
    const giveUp = this.#requests.verify(descriptor, recipient);
    this.#beginPolling();
    return giveUp;
  }

  /** As {@link Requests.request}. */
  request(value: unknown, recipient: Recipient): () => void {
    assertNotCapturing('receiving');
    const giveUp = this.#requests.request(value, recipient);
    this.#beginPolling();
    return giveUp;
  }

  /** As {@link Requests.serve}. */
  serve(settings: ServeSettings): Serving {
    assertNotCapturing('receiving');
    const serving = this.#requests.serve(settings);
    this.#readiness.serves();
    return serving;
  }

  #send(value: unknown, message: OutgoingMessage): Promise<void> | undefined {
    if (this.#end) throw this.#end;
    this.#socket.sendQueue.checkCapacity();
    return ByteWriter.use(HEADER_BYTE_LENGTH, (writer) => {
      // Getters of the value and memory managers run here. They may send on this connection, and
      // what they send goes out first. They may also close it.
      const placed = encodeValue(writer, value, sendable);
      const exported = placed.map(exportPlaced);
      if (this.#end) throw this.#end;
      const leased = placed.length > 0 ? this.#lease(writer, placed, exported, message) : undefined;
      try {
        return this.#post(writer, leased, message);
      } catch (error) {
        throw error instanceof SystemError ? this.#sendFailed(error) : error;
      }
    });
  }

  /** As {@link Session.leaseObjects}. A shortage of this process concerns only this value. */
  #lease(
    writer: ByteWriter,
    placed: readonly PlacedObject<Shareable>[],
    exported: readonly EncodedExport[],
    { stream }: OutgoingMessage,
  ): LeasedObjects {
    try {
      return this.#session.leaseObjects(writer, placed.map(objectOf), exported, stream);
    } catch (error) {
      if (!(error instanceof SystemError)) throw error;
      throw isShortage(error)
        ? new IpcError('the value cannot be sent', error, 'limit-exceeded')
        : this.#sendFailed(error);
    }
  }

  /** Writes a control block behind an encoded value, and posts both. */
  #post(
    writer: ByteWriter,
    leased: LeasedObjects | undefined,
    message: OutgoingMessage,
  ): Promise<void> | undefined {
    const session = this.#session;
    let control: ControlBlock = emptyControlBlock;
    const cancel = (): void => {
      if (leased) session.cancelLeases(leased);
      if (control !== emptyControlBlock) session.restoreControl(control);
    };
    try {
      if (session.timeline.isPageUnshared) session.sendTimelinePage();
      control = session.takeControl(leased?.points);
      if (control !== emptyControlBlock) {
        writer.limit(MAX_CONTROL_BYTE_LENGTH);
        writeControlBlock(writer, control);
      }
      const fds = leased?.fds ?? [];
      message.admit?.({
        byteLength: queuedByteLength(
          writer.offset - HEADER_BYTE_LENGTH,
          leased?.leases.length ?? 0,
        ),
        fdCount: fds.length,
      });
      const acknowledged = leased?.forwarded?.acknowledged;
      return this.#socket.post(message, writer.written, fds, cancel, acknowledged);
    } catch (error) {
      cancel();
      throw error;
    } finally {
      leased?.ownFds.forEach(closeFd);
    }
  }

  #postControl(block: ControlBlock, fds: readonly number[]): void {
    ByteWriter.use(HEADER_BYTE_LENGTH, (writer) => {
      writeControlBlock(writer, block);
      this.#socket
        .post({ kind: FrameKind.control, request: 0 }, writer.written, fds)
        ?.catch(() => {});
    });
  }

  /** Tells the peer what this end has begun, unless no values travel any longer. */
  #tellBegun(begun: number): void {
    if (this.#state !== 'open') return;
    try {
      this.#postControl({ ...emptyControlBlock, begun }, []);
    } catch (error) {
      this.onFailure(error);
    }
  }

  #sendControl(): void {
    clearImmediate(this.#controlImmediate);
    this.#controlImmediate = undefined;
    // Messages in the queue take the control entries along, or `onDrained` follows them.
    if (this.#state === 'closed' || !this.#socket.sendQueue.isEmpty) return;
    try {
      if (!this.#session.sendPending()) this.#retryControl();
    } catch (error) {
      this.onFailure(error);
      return;
    }
    this.#on('less in use');
  }

  #retryControl(): void {
    this.#controlRetry ??= setTimeout(() => {
      this.#controlRetry = undefined;
      this.#sendControl();
    }, RETRY_MS).unref();
  }

  /** Ends the connection after a failed send, and returns the error. */
  #sendFailed(error: SystemError): unknown {
    const failure = new IpcError(`nothing can be sent to ${this.peerName}`, error);
    this.fail(failure);
    return failure;
  }

  // ---- Receiving ----

  /** Requests the next value. Returns a function that cancels the request. */
  receive(recipient: Recipient): () => void {
    assertNotCapturing('receiving');
    const isLater = isTurnDue();
    if (!isLater && this.#receiveQueue.isIdle) this.#readNow();
    const cancel = this.#receiveQueue.receive(recipient, isLater);
    this.#readiness.receives();
    this.#onDelivered();
    this.#beginPolling();
    if (!isLater) return cancel;
    // A time limit may come before the turn of the event loop, not before a value that has arrived.
    return () => {
      this.#readNow();
      this.#receiveQueue.deliver();
      cancel();
    };
  }

  #readNow(): void {
    const { byHostWait, byLongValue } = this.#held;
    if (!byHostWait && !byLongValue) this.#socket.readNow();
  }

  /** Handles that values or answers were taken: there may be room for more, or nothing left. */
  #onDelivered(): void {
    if (
      this.#held.byFullQueue &&
      this.#state === 'open' &&
      this.#receiveQueue.hasRoom &&
      this.#requests.hasRoom
    ) {
      this.#held.byFullQueue = false;
      this.#socket.resume();
    }
    if (this.#isDrained) this.#onReceivingOver();
  }

  /** Whether all that arrived was taken, and nothing more will arrive. */
  get #isDrained(): boolean {
    return this.#receiveQueue.isDrained && this.#requests.isDrained;
  }

  #beginPolling(): void {
    if (this.#poller.durationUs > 0) this.#poller.begin();
  }

  /** As {@link FramedSocketHandler}. */
  wantsMore(): boolean {
    const held = this.#held;
    if (held.byHostWait || held.byLongValue) return false;
    if (this.#socket.isEnding) return true;
    if (this.#state === 'open' && (this.#receiveQueue.isFull || this.#requests.isFull))
      held.byFullQueue = true;
    return !held.byFullQueue;
  }

  /** As {@link FramedSocketHandler}. */
  onMessage(arrived: Message): boolean {
    if (arrived.kind !== FrameKind.control)
      return this.#read(arrived, new ValueMessageReader(arrived.bytes));
    // Without the counters of the peer, or a link of a third process, order and memory are not safe.
    if (arrived.shortage) throw arrived.shortage;
    let block: ControlBlock;
    try {
      block = readControlMessage(arrived.bytes, arrived.fds.length);
    } catch (error) {
      discardFds(arrived.fds);
      throw error;
    }
    this.#applyControl(block, arrived.fds);
    if (block.begun !== 0) this.#readiness.onPeerBegun(block.begun);
    if (block.isClosing || block.isDone) {
      this.#session.isClosedByPeer = true;
      this.#on('closed by peer', closedByPeerError(this.peerName));
    }
    if (block.isDone) this.#session.onPeerDone();
    this.#on('less in use');
    return false;
  }

  /**
   * Checks a message with a value and delivers it. A long value is checked between turns of the
   * event loop, and later messages wait. Returns whether a caller waited for it.
   */
  #read(arrived: Message, reader: ValueMessageReader): boolean {
    let message: ValueMessage | undefined;
    try {
      // A message of a single frame is short, and its bytes are valid only now.
      do message = reader.read(arrived.shortage ? undefined : arrived.fds.length);
      while (!message && arrived.isSingleFrame);
      if (message) this.#accept(message);
    } catch (error) {
      this.#held.byLongValue = false;
      discardFds(arrived.fds);
      throw error;
    }
    this.#held.byLongValue = message === undefined;
    if (message) return this.#deliver(arrived, message);
    setImmediate(() => this.#readOn(arrived, reader));
    return false;
  }

  #readOn(arrived: Message, reader: ValueMessageReader): void {
    if (this.#state === 'closed') {
      discardFds(arrived.fds);
      return;
    }
    try {
      this.#read(arrived, reader);
    } catch (error) {
      this.onFailure(error);
    }
    if (!this.#held.byLongValue) this.#socket.resume();
  }

  /** Applies what came with a value. From then on, its objects must be opened or released. */
  #accept({ objects, control }: ValueMessage): void {
    const { timeline, imports } = this.#session;
    this.#applyControl(control, []);
    // Throws for points without a page.
    if (control.points.length > 0) timeline.isReached(control.points);
    if (objects.entries.length > 0) imports.add(objects.firstLease, objects.entries.length);
  }

  #applyControl(block: ControlBlock, fds: readonly number[]): void {
    const points = this.#session.applyControl(block, fds);
    if (points.length === 0) return;
    this.#held.byHostWait = true;
    void this.#session.whenReached(points).then(() => {
      this.#held.byHostWait = false;
      this.#socket.resume();
    });
  }

  /** Delivers a checked value, or releases its objects. Returns whether a caller waited for it. */
  #deliver(arrived: Message, message: ValueMessage): boolean {
    const { firstLease, entries } = message.objects;
    const release = (): void => this.#session.imports.releaseAll(firstLease, entries.length);
    if (this.#end) {
      // The value was sent before the peer knew of the end.
      discardFds(arrived.fds);
      release();
      return false;
    }
    try {
      return this.#dispatch(arrived, message);
    } catch (error) {
      // It was refused before anything of it was opened.
      release();
      throw error;
    }
  }

  #dispatch(arrived: Message, message: ValueMessage): boolean {
    const { kind, request, fds, bytes, isSingleFrame } = arrived;
    const refusal = arrived.shortage && shortageError(arrived.shortage);
    if (kind === FrameKind.cancellation) this.#requests.receiveCancellation(request, message, fds);
    else if (kind === FrameKind.unserved) this.#requests.receiveRefusal(request, message, fds);
    else {
      const byteLength = queuedByteLength(bytes.byteLength, message.objects.entries.length);
      const size = { byteLength, fdCount: fds.length };
      const isServed = this.#queue(kind, request, message, fds, size, refusal);
      // Keeps the bytes until a caller takes the value.
      if (isSingleFrame) message.value.copyBytes();
      if (!isServed) this.#readiness.check();
      return isServed;
    }
    return kind === FrameKind.unserved;
  }

  /** Queues a value, a request or an answer. Returns whether a caller waited for it. */
  #queue(
    kind: FrameKind,
    request: number,
    message: ValueMessage,
    fds: readonly number[],
    size: MessageSize,
    refusal: IpcError | undefined,
  ): boolean {
    if (kind === FrameKind.request)
      return this.#requests.receiveRequest(request, message, fds, size, refusal);
    if (kind === FrameKind.verification) {
      this.#requests.receiveVerification(request, message, fds, size);
      return false;
    }
    if (kind !== FrameKind.value) {
      const hasFailed = kind === FrameKind.failure;
      return this.#requests.receiveAnswer(request, hasFailed, message, fds, size, refusal);
    }
    const arrival = openArrival(message, fds, this.#session, refusal);
    const { byteLength } = size;
    return this.#receiveQueue.add(arrival, 'error' in arrival ? { byteLength, fdCount: 0 } : size);
  }

  // ---- The end ----

  /**
   * Closes this end. Messages that are being sent are completed, others are dropped. Objects that
   * have arrived, or still arrive, are released. The second call does nothing.
   */
  close(): void {
    this.#on('closed here', new ClosedError(closedMessage('Peer', this.resource)));
    this.#receiveQueue.clear();
    this.#requests.clear();
    this.#onReceivingOver();
    this.#on('less in use');
    // If the peer is gone there is nothing to wait for.
    if (this.#socket.isEnding) this.#socket.readToEnd();
  }

  /**
   * Ends the connection because of what the peer did. The error is reported after the values that
   * came before.
   */
  fail(error: IpcError): void {
    this.#on('failed', error);
  }

  /** Handles that the exit status of the child is known. */
  onExitKnown(): void {
    this.#isExitAwaited = false;
    this.#onPeerGone();
  }

  /**
   * Handles the end of this thread. An exit with code 0 closes the connection in an orderly way,
   * because the peer cannot tell it from a crash otherwise. The exception is lost work that the
   * peer waits for.
   */
  onThreadExit(isOrderly: boolean): void {
    const reason = new ClosedError(
      `this Peer is closed: this ${isMainThread() ? 'process' : 'worker thread'} is exiting`,
    );
    if (isOrderly && !this.#session.timeline.isAwaitedByPeer) this.#on('closed here', reason);
    // The kernel closes the socket with the process, but not with a worker thread.
    if (!isMainThread()) this.#on('failed', reason);
  }

  /** As {@link FramedSocketHandler}. */
  onSocketEnd(): void {
    this.#on('socket ended', this.#endReason());
  }

  /** As {@link FramedSocketHandler}. */
  onFailure(error: unknown): void {
    // Catches everything: a message of another process must not crash this one.
    const failure = new IpcError(
      `the connection to ${this.peerName} was closed: ${messageOf(error)}`,
      undefined,
      error instanceof IpcError ? error.code : 'ipc-failed',
    );
    if (error instanceof SystemError) failure.cause = error;
    this.fail(withoutStack(failure));
  }

  /** As {@link FramedSocketHandler}. */
  onDrained(): void {
    if (this.#end) this.#keepAliveWhileSending();
    this.#sendControl();
  }

  /** @param reason why the connection ends, if it does */
  #on(event: ConnectionEvent, reason?: ConnectionEnd): void {
    const action: Action = TRANSITIONS[event][this.#state];
    if (action === 'nothing') return;
    if (action === 'close if unused') this.#closeIfUnused();
    else if (action === 'await exit') this.#awaitEndOfProcess(reason as ConnectionEnd);
    else {
      if (this.#state === 'open') this.isEndedByPeer = BY_PEER.has(event);
      this.#finish(reason as ConnectionEnd, action === 'close' ? 'closed' : 'closing');
    }
  }

  #finish(reason: ConnectionEnd, state: 'closing' | 'closed'): void {
    const isFirst = this.#state === 'open';
    this.#state = state;
    this.#end ??= reason;
    this.#held.byFullQueue = false;
    if (state === 'closed') this.#closeSocket();
    else {
      connections.set(this, undefined);
      this.#beginClosing(reason);
    }
    if (!isFirst) return;
    this.onEnd?.(reason);
    this.#requests.end(reason);
    this.#readiness.end(reason);
    this.#receiveQueue.end(reason);
    this.#onDelivered();
  }

  /**
   * Completes the messages that are being sent and waits for all leases; then the socket is closed.
   */
  #beginClosing(reason: ConnectionEnd): void {
    this.#socket.sendQueue.rejectUnstarted(reason);
    try {
      const isAllSent = this.#session.sendPending();
      this.#postControl({ ...emptyControlBlock, isClosing: true }, []);
      if (!isAllSent) this.#retryControl();
    } catch (error) {
      this.onFailure(error);
      return;
    }
    this.#closeTimer = setTimeout(() => this.#onCloseTimeout(), CLOSE_TIMEOUT_MS).unref();
    this.#keepAliveWhileSending();
    // Reading may have been paused. Objects that still arrive are released.
    this.#socket.resume();
  }

  #keepAliveWhileSending(): void {
    this.#socket.setReferenced(this.#closeTimer !== undefined && !this.#socket.sendQueue.isEmpty);
  }

  /** Stops waiting for a peer that does not read, unless leases are in use. */
  #onCloseTimeout(): void {
    this.#closeTimer = undefined;
    this.#keepAliveWhileSending();
    this.#on('less in use');
  }

  /** Closes the socket of an ended connection once no leases are in use. */
  #closeIfUnused(): void {
    if (this.#session.isInUse) return;
    if (!this.#socket.sendQueue.isEmpty) {
      // The peer's time to read is over.
      if (!this.#closeTimer) this.#finish(this.#end as ConnectionEnd, 'closed');
      return;
    }
    try {
      // Says that this end holds nothing of the peer and drops what still arrives.
      if (!this.#isDoneSent) this.#postControl({ ...emptyControlBlock, isDone: true }, []);
    } catch (error) {
      this.onFailure(error);
      return;
    }
    this.#isDoneSent = true;
    // Otherwise the socket is closed after the queued message.
    if (this.#socket.sendQueue.isEmpty) this.#finish(this.#end as ConnectionEnd, 'closed');
  }

  #closeSocket(): void {
    clearTimeout(this.#closeTimer);
    clearTimeout(this.#exitTimer);
    this.#closeTimer = undefined;
    connections.delete(this);
    this.#socket.close(this.#end as ConnectionEnd);
    this.#endSessionIfUnused();
  }

  /** The end of the process tells more than the end of its socket, and comes soon after. */
  #awaitEndOfProcess(reason: ConnectionEnd): void {
    const { process } = this.#session;
    const { isEnding } = process;
    const isSoonKnown = process.isGone
      ? this.#isExitAwaited
      : process.isExitObservable && isEnding !== false;
    if (!isSoonKnown) {
      this.#on('end explained', reason);
      return;
    }
    this.#held.byHostWait = true;
    if (isEnding !== undefined) return;
    this.#exitTimer = setTimeout(() => {
      // If the process is gone, more is known already or will be.
      if (!process.isGone) this.#on('end explained', this.#endReason());
    }, MAX_EXIT_MS).unref();
  }

  #onPeerGone(): void {
    this.#held.byHostWait = false;
    this.#socket.markPeerGone();
  }

  #onReceivingOver(): void {
    this.#session.endReceiving();
    this.#endSessionIfUnused();
    this.onDrainedAfterEnd?.();
    this.onDrainedAfterEnd = undefined;
  }

  /** Ends the session once no message can come or go, and no received value is left. */
  #endSessionIfUnused(): void {
    if (this.#state === 'closed' && this.#isDrained) this.#session.end();
  }

  /** Returns why the socket ended without a control message. */
  #endReason(): ConnectionEnd {
    const { isGone, process } = this.#session;
    if (!isGone && !process.isEnding && process.isExitObservable) {
      return this.#socket.hasMet
        ? closedByPeerError(this.peerName)
        : withoutStack(
            new IpcError(
              `${this.peerName} has closed the connection without a word: it has refused this ` +
                'process, or needs an earlier version of cuffi',
            ),
          );
    }
    const error = this.#session.goneError();
    // Of a child that failed, only a missing script is worth a word: its own error says the rest.
    const findFault = this.#socket.hasMet ? undefined : this.#findFault;
    const hint = error instanceof ClosedError ? this.silenceHint : findFault?.();
    if (hint !== undefined) error.message += `: ${hint}`;
    return withoutStack(error);
  }
}

/** A message with a value. */
interface OutgoingMessage extends MessageType {
  /** The stream whose work the receiver must wait for. Default: all known work. */
  readonly stream?: Stream | undefined;
  /** Called with the size of the message before it is sent. May throw. */
  readonly admit?: (size: MessageSize) => void;
}

/** The error of a value whose file descriptors found no room here. */
const shortageError = (shortage: SystemError): IpcError =>
  new IpcError('the objects of a value were refused', shortage, 'limit-exceeded');

/** How much a message counts for in the receive queue. */
const queuedByteLength = (byteLength: number, objects: number): number =>
  byteLength + objects * QUEUED_OBJECT_BYTE_LENGTH;

/** What may stand in a value besides plain data: whatever a row of the table of kinds includes. */
const sendable: TransferableObjects<Shareable> = {
  includes: isShareable,
  alternativeTo(object) {
    if (types.isPromise(object)) return 'await it first';
    if (object instanceof IpcMemoryHandle)
      return (
        `send the ${object instanceof IpcArrayHandle ? 'array' : 'buffer'} itself, or toJSON() of ` +
        'this as data, which peer.open() opens there'
      );
    if (object instanceof ReadyExport) return 'send the memory itself, with { stream }';
    return object instanceof IpcHandle
      ? 'send the buffer itself'
      : 'only plain objects, arrays, Maps, Sets, Dates, errors, binary data, device arrays, ' +
          'buffers, pools and events are';
  },
};

const objectOf = ({ object }: PlacedObject<Shareable>): Shareable => object;

/** Exports an object for any process. @throws IpcError, ClosedError with its path in the value */
function exportPlaced({ object, path }: PlacedObject<Shareable>): EncodedExport {
  try {
    return exportForAnyPeer(object);
  } catch (error) {
    if (isShortage(error))
      throw new IpcError(`${formatPath(path)} cannot be sent`, error, 'limit-exceeded');
    if (error instanceof CuffiError) prefixMessage(error, formatPath(path));
    throw error;
  }
}

const closedByPeerError = (other: string): ClosedError =>
  withoutStack(new ClosedError(`this Peer is closed: ${other} has closed the connection`));

/** An error found by the event loop has no caller, so its stack would only show the loop. */
function withoutStack<T extends Error>(error: T): T {
  error.stack = String(error);
  return error;
}
