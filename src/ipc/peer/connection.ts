/** One end of a connection: the states that it goes through, and its socket. */

import { SystemError } from '../../../ffi/linux/libc.ts';
import { closeSocket } from '../../../ffi/linux/socket.ts';
import { isMainThread } from '../../../ffi/thread.ts';
import type { Traffic } from '../../diagnostics.ts';
import { ClosedError, IpcError, type PeerGoneError } from '../../errors.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import { closedMessage, type ResourceState } from '../../lifetime.ts';
import { isTurnDue } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { messageOf } from '../../validate.ts';
import type { IpcDescriptor } from '../descriptor.ts';
import type { PeerProcess } from '../lease/peer-process.ts';
import { FrameKind } from '../protocol.ts';
import { BusyPoller } from '../wire/busy-poll.ts';
import { FramedSocket, type FramedSocketHandler } from '../wire/framed-socket.ts';
import type { Message } from '../wire/frames.ts';
import { Control, type ControlHost } from './control.ts';
import { Incoming, type IncomingHost } from './incoming.ts';
import { Outgoing, type OutgoingHost } from './outgoing.ts';
import { Readiness } from './readiness.ts';
import {
  ReceiveQueue,
  type ReceiveQueueHost,
  type Recipient,
  type RequestRecipient,
} from './receive-queue.ts';
import { Requests, type RequestsHost, type ServeSettings, type Serving } from './requests.ts';
import { Session } from './session.ts';

/** The result of `peer.stats()`. */
export interface PeerStats {
  /** All that was sent, answers and requests included, and all that has arrived. */
  readonly sent: Traffic;
  readonly received: Traffic;
  /** What waits to be sent, because the other process does not read. */
  readonly unsent: { readonly messages: number; readonly byteLength: number };
  /** How many values have arrived that nobody has received. */
  readonly waiting: number;
  /** How many requests of this process have no answer, and how many of the other one. */
  readonly requests: { readonly asked: number; readonly serving: number };
  /** How many objects the other process has of this one, and this one of the other. */
  readonly leases: { readonly given: number; readonly held: number };
}

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

/** What the parts of a connection tell it. */
type Hosts = ControlHost & IncomingHost & OutgoingHost & ReceiveQueueHost & RequestsHost;

/** One end of a connection: sends values, and receives them. */
export class Connection implements FramedSocketHandler, Hosts {
  readonly #session: Session;
  readonly #socket: FramedSocket;
  readonly #control: Control;
  readonly #outgoing: Outgoing;
  readonly #values: ReceiveQueue;
  readonly #requests: Requests;
  readonly #readiness: Readiness;
  readonly #incoming: Incoming;
  readonly #poller: BusyPoller;
  #state: State = 'open';
  #end: ConnectionEnd | undefined;
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
  #closeTimer: NodeJS.Timeout | undefined;
  #exitTimer: NodeJS.Timeout | undefined;
  /** Called once nothing can be sent and nothing more arrives. */
  onEnd: ((reason: ConnectionEnd) => void) | undefined;
  /** Called once nothing can be sent and all received values were taken. */
  onDrainedAfterEnd: (() => void) | undefined;

  /** @param fd the socket. This connection owns it from now on, even if this throws */
  constructor(fd: number, peerName: string, process: PeerProcess, graceMs: number) {
    let session: Session;
    try {
      session = new Session(process, peerName, graceMs);
    } catch (error) {
      closeSocket(fd);
      throw error;
    }
    let socket: FramedSocket;
    try {
      socket = new FramedSocket(fd, this);
    } catch (error) {
      session.end();
      throw error;
    }
    const control = new Control(session, socket, this);
    const outgoing = new Outgoing(session, socket, control, this);
    const values = new ReceiveQueue(session, this);
    const requests = new Requests(session, outgoing, this);
    const { sendQueue } = socket;
    const readiness = new Readiness({ peerName, values, requests, control, sendQueue });
    const receivers = { session, socket, control, values, requests, readiness };
    this.#session = session;
    this.#socket = socket;
    this.#control = control;
    this.#outgoing = outgoing;
    this.#values = values;
    this.#requests = requests;
    this.#readiness = readiness;
    this.#incoming = new Incoming(receivers, this);
    this.#poller = new BusyPoller(socket, {
      isAwaited: () => values.isAwaited || requests.isAwaited,
      sendControl: () => control.sendScheduled(),
    });
    session.onGone = () => this.#onPeerGone();
    if (session.isGone) setImmediate(() => this.#onPeerGone());
    connections.set(this, undefined);
  }

  /** The peer in words, such as `process 123`. */
  get peerName(): string {
    return this.#session.peerName;
  }

  /** What it has done, and what it waits for. */
  stats(): PeerStats {
    const { sendQueue } = this.#socket;
    const { exports, imports } = this.#session;
    return {
      sent: this.#outgoing.traffic.counts,
      received: this.#incoming.traffic.counts,
      unsent: { messages: sendQueue.length, byteLength: sendQueue.byteLength },
      waiting: this.#values.length,
      requests: this.#requests.counts,
      leases: { given: exports.size, held: imports.size },
    };
  }

  /** Why the connection ended; a ClosedError if it was closed in an orderly way. */
  get end(): ConnectionEnd | undefined {
    return this.#end;
  }

  /** The time limit of requests that have none. */
  requestTimeoutMs: number | undefined;

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

  /** Whether the other process has connected: a child does when it asks for its parent. */
  get hasMet(): boolean {
    return this.#socket.hasMet;
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

  /** As {@link Outgoing.send}. */
  send(value: unknown, stream: Stream | undefined): Promise<void> | undefined {
    if (!this.#end) this.#readiness.checkSend();
    const sending = this.#outgoing.send(value, { kind: FrameKind.value, request: 0, stream });
    return this.#readiness.confirm(sending);
  }

  /** As {@link Requests.verify}. */
  verify(descriptor: IpcDescriptor, recipient: Recipient): () => void {
    const giveUp = this.#requests.verify(descriptor, recipient);
    this.#beginPolling();
    return giveUp;
  }

  /** As {@link Requests.request}. */
  request(value: unknown, recipient: RequestRecipient): () => void {
    assertNotCapturing('receiving');
    const giveUp = this.#requests.request(value, recipient);
    this.#beginPolling();
    return giveUp;
  }

  /** Resolves when the other process serves requests; never, if it does not before the end. */
  whenServed(): Promise<void> {
    return this.#readiness.whenPeerServes();
  }

  /** As {@link Requests.serve}. */
  serve(settings: ServeSettings): Serving {
    assertNotCapturing('receiving');
    const serving = this.#requests.serve(settings);
    this.#readiness.serves();
    return serving;
  }

  // ---- Receiving ----

  /** Requests the next value. Returns a function that cancels the request. */
  receive(recipient: Recipient): () => void {
    assertNotCapturing('receiving');
    const isLater = isTurnDue();
    if (!isLater && this.#values.isIdle) this.#incoming.readNow();
    const cancel = this.#values.receive(recipient, isLater);
    this.#readiness.receives();
    this.onDelivered();
    this.#beginPolling();
    if (!isLater) return cancel;
    // A time limit may come before the turn of the event loop, not before a value that has arrived.
    return () => {
      this.#incoming.readNow();
      this.#values.deliver();
      cancel();
    };
  }

  /** Handles that values or answers were taken: there may be room for more, or nothing left. */
  onDelivered(): void {
    this.#incoming.resumeIfRoom();
    if (this.#isDrained) this.#onReceivingOver();
  }

  /** As {@link RequestsHost}. */
  onAwaited(): void {
    this.#beginPolling();
    this.#readiness.check();
  }

  /** Whether all that arrived was taken, and nothing more will arrive. */
  get #isDrained(): boolean {
    return this.#values.isDrained && this.#requests.isDrained;
  }

  #beginPolling(): void {
    if (this.#poller.durationUs > 0) this.#poller.begin();
  }

  /** As {@link FramedSocketHandler}. */
  wantsMore(): boolean {
    return this.#incoming.wantsMore();
  }

  /** As {@link FramedSocketHandler}. */
  onMessage(arrived: Message): boolean {
    return this.#incoming.receive(arrived);
  }

  // ---- The end ----

  /**
   * Closes this end. Messages that are being sent are completed, others are dropped. Objects that
   * have arrived, or still arrive, are released. The second call does nothing.
   */
  close(): void {
    this.#on('closed here', new ClosedError(closedMessage('Peer', this.resource)));
    this.#values.clear();
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

  /** As {@link ControlHost}. */
  onLessInUse(): void {
    this.#on('less in use');
  }

  /** As {@link IncomingHost}. */
  onClosedByPeer(): void {
    this.#on('closed by peer', closedByPeerError(this.peerName));
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
    this.#control.send();
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
    this.#incoming.drain();
    if (state === 'closed') this.#closeSocket();
    else {
      connections.set(this, undefined);
      this.#beginClosing(reason);
    }
    if (!isFirst) return;
    this.onEnd?.(reason);
    this.#requests.end(reason);
    this.#readiness.end(reason);
    this.#values.end(reason);
    this.onDelivered();
  }

  /**
   * Completes the messages that are being sent and waits for all leases; then the socket is closed.
   */
  #beginClosing(reason: ConnectionEnd): void {
    this.#socket.sendQueue.rejectUnstarted(reason);
    try {
      this.#control.sendAll();
      this.#control.post({ isClosing: true });
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
      if (!this.#isDoneSent) this.#control.post({ isDone: true });
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
    this.#incoming.hold();
    if (isEnding !== undefined) return;
    this.#exitTimer = setTimeout(() => {
      // If the process is gone, more is known already or will be.
      if (!process.isGone) this.#on('end explained', this.#endReason());
    }, MAX_EXIT_MS).unref();
  }

  #onPeerGone(): void {
    this.#incoming.release();
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

const closedByPeerError = (other: string): ClosedError =>
  withoutStack(new ClosedError(`this Peer is closed: ${other} has closed the connection`));

/** An error found by the event loop has no caller, so its stack would only show the loop. */
function withoutStack<T extends Error>(error: T): T {
  error.stack = String(error);
  return error;
}
