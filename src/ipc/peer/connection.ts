import { isMainThread } from 'node:worker_threads';
import { discardFds } from '../../../ffi/linux/close-fd.ts';
import type { SystemError } from '../../../ffi/linux/libc.ts';
import { closeSocket } from '../../../ffi/linux/socket.ts';
import { ClosedError, IpcError, type PeerGoneError } from '../../errors.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import type { Stream } from '../../stream.ts';
import type { PeerProcess } from '../lease/peer-process.ts';
import { BusyPoller } from '../wire/busy-poll.ts';
import { FramedSocket, type FramedSocketHandler } from '../wire/framed-socket.ts';
import { FrameKind, type Message } from '../wire/frames.ts';
import { QUEUED_OBJECT_BYTE_LENGTH } from '../wire/limits.ts';
import type { ScannedValue, ValueScan } from '../wire/value-decoder.ts';
import { ControlReceiver, ControlSender } from './control.ts';
import { PeerState } from './peer-state.ts';
import { openValueArrival, ValueReceiver } from './receive.ts';
import { ReceiveQueue } from './receive-queue.ts';
import { ValueSender } from './send.ts';
import { DescriptorVerifier, type VerificationRequest } from './verification.ts';

/** Why a connection has ended. */
export type ConnectionEnd = ClosedError | PeerGoneError | IpcError;

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

/** The connections of this thread whose socket is open. */
const connections = new Set<Connection>();

process.on('exit', (code) => {
  for (const connection of connections) connection.onThreadExit(code === 0);
});

/** One end of a connection: sends values, and receives them. */
export class Connection implements FramedSocketHandler {
  /** The peer in words, such as `process 123`. */
  readonly peerName: string;
  readonly sender: ValueSender;
  readonly poller: BusyPoller;
  readonly #state: PeerState;
  readonly #receiveQueue = new ReceiveQueue();
  readonly #socket: FramedSocket;
  readonly #controlReceiver: ControlReceiver;
  readonly #receiver: ValueReceiver;
  readonly #verifier: DescriptorVerifier;
  readonly #controlSender: ControlSender;
  #isPaused = false;
  #isExitAwaited = false;
  #isDoneSent = false;
  /** Whether a long value is being checked. */
  #isChecking = false;
  /** Set while sending control messages is scheduled. */
  #controlImmediate: NodeJS.Immediate | undefined;
  #controlRetry: NodeJS.Timeout | undefined;
  #closeTimer: NodeJS.Timeout | undefined;
  #end: ConnectionEnd | undefined;
  /** Called once nothing can be sent and nothing more arrives. */
  onEnd: ((reason: ConnectionEnd) => void) | undefined;
  /** Called once nothing can be sent and all received values were taken. */
  onDrainedAfterEnd: (() => void) | undefined;

  /** @param fd the socket. This connection owns it from now on, even if this throws */
  constructor(fd: number, peerName: string, process: PeerProcess, graceMs: number) {
    this.peerName = peerName;
    try {
      this.#state = new PeerState(process, peerName, graceMs);
    } catch (error) {
      closeSocket(fd);
      throw error;
    }
    try {
      this.#socket = new FramedSocket(fd, this);
    } catch (error) {
      this.#state.end();
      throw error;
    }
    this.#controlSender = new ControlSender(this.#state, this.#socket);
    this.sender = new ValueSender(this.#state, this.#socket, this.#controlSender, {
      assertOpen: () => {
        if (this.#end) throw this.#end;
      },
      socketFailure: (error) => this.#sendFailed(error),
    });
    this.#controlReceiver = new ControlReceiver(this.#state, () => this.#socket.resume());
    this.#receiver = new ValueReceiver(this.#state, () => {
      this.#receiveQueue.serve();
      if (this.#receiveQueue.isDrained) this.#onReceivingOver();
    });
    this.#verifier = new DescriptorVerifier(peerName, this.#state, this.sender, this.#receiver);
    this.poller = new BusyPoller(this.#socket, {
      isAwaited: () => this.#receiveQueue.isAwaited || this.#verifier.isAwaited,
      sendControl: () => this.#controlImmediate && this.#sendControl(),
    });
    this.#state.onControlPending = () => {
      this.#controlImmediate ??= setImmediate(() => this.#sendControl());
    };
    this.#state.onGone = () => this.#onPeerGone();
    if (this.#state.isGone) setImmediate(() => this.#onPeerGone());
    connections.add(this);
  }

  /** Why the connection ended; a ClosedError if it was closed in an orderly way. */
  get end(): ConnectionEnd | undefined {
    return this.#end;
  }

  /** Requests the next value. Returns a function that cancels the request. */
  receive(
    resolve: (value: unknown) => void,
    reject: (error: unknown) => void,
    stream?: Stream,
  ): () => void {
    assertNotCapturing('receiving');
    if (this.#receiveQueue.isIdle && !this.#controlReceiver.isStalled && !this.#isChecking)
      this.#socket.readNow();
    const cancel = this.#receiveQueue.addReceive(
      (received) => this.#receiver.deliver(received, { resolve, reject, stream }),
      reject,
    );
    if (this.#isPaused && this.#receiveQueue.hasRoom) {
      this.#isPaused = false;
      this.#socket.resume();
    }
    if (this.#receiveQueue.isDrained) this.#onReceivingOver();
    this.poller.begin();
    return cancel;
  }

  /** As {@link DescriptorVerifier.request}. */
  verify(asker: VerificationRequest): void {
    this.#verifier.request(asker);
    this.poller.begin();
  }

  /** Announces that the peer is a child of this process, so that its exit status will be known. */
  awaitExit(): void {
    this.#isExitAwaited = true;
  }

  /** Handles that the exit status of the child is known. */
  onExitKnown(): void {
    this.#isExitAwaited = false;
    this.#onPeerGone();
  }

  /**
   * Closes this end. Messages that are being sent are completed, others are dropped. Objects that
   * have arrived, or still arrive, are released. The second call does nothing.
   */
  close(): void {
    this.#finish(new ClosedError('this Peer is closed'), 'close');
    this.#receiveQueue.clear();
    this.#receiver.stop();
    this.#onReceivingOver();
    this.#closeIfUnused();
    // If the peer is gone there is nothing to wait for.
    if (this.#socket.isEnding) this.#socket.readToEnd();
  }

  /**
   * Handles the end of this thread. An exit with code 0 closes the connection in an orderly way,
   * because the peer cannot tell it from a crash otherwise. The exception is lost work that the
   * peer waits for.
   */
  onThreadExit(isOrderly: boolean): void {
    const isLost = this.#state.timeline.isAwaitedByPeer;
    if (isOrderly && !isLost) this.#finish(new ClosedError('this Peer is closed'), 'close');
    // The kernel closes the socket with the process, but not with a worker thread.
    if (!isMainThread) this.#finish(new ClosedError('this Peer is closed'), 'break');
  }

  /**
   * Ends the connection because of what the peer did. The error is reported after the values that
   * came before.
   */
  fail(error: IpcError): void {
    this.#finish(error, 'break');
  }

  setReferenced(isReferenced: boolean): void {
    if (!this.#end) this.#socket.setReferenced(isReferenced);
  }

  /** As {@link FramedSocketHandler}. */
  wantsMore(): boolean {
    if (this.#controlReceiver.isStalled || this.#isChecking) return false;
    if (this.#socket.isEnding) return true;
    if (this.#end === undefined && this.#receiveQueue.isFull) this.#isPaused = true;
    return !this.#isPaused;
  }

  /** As {@link FramedSocketHandler}. */
  onMessage(arrived: Message): boolean {
    if (arrived.kind === FrameKind.control) {
      const { isClosing, isDone } = this.#controlReceiver.receiveControl(arrived);
      if (isClosing || isDone) this.#onPeerClosed();
      if (isDone) this.#state.onPeerDone();
      this.#closeIfUnused();
      return false;
    }
    return this.#check(arrived, this.#controlReceiver.scan(arrived));
  }

  /**
   * Checks a value and delivers it. A long value is checked between turns of the event loop, and
   * later messages wait.
   */
  #check(arrived: Message, scan: ValueScan): boolean {
    const scanned = this.#controlReceiver.receiveValue(arrived, scan);
    this.#isChecking = scanned === undefined;
    if (scanned) return this.#deliver(arrived, scanned);
    setImmediate(() => {
      if (!this.#socket.isOpen) {
        discardFds(arrived.fds);
        return;
      }
      try {
        this.#check(arrived, scan);
      } catch (error) {
        this.#isChecking = false;
        this.onFailure(error);
      }
      if (!this.#isChecking) this.#socket.resume();
    });
    return false;
  }

  /** Delivers a checked value. Returns whether a caller waited for it. */
  #deliver({ kind, fds, bytes, isSingleFrame }: Message, scanned: ScannedValue): boolean {
    if (this.#end) {
      // The value was sent before the peer knew of the end. Its objects are released.
      discardFds(fds);
      if (scanned.control.leases) this.#state.imports.releaseAll(scanned.control.leases);
      return false;
    }
    if (kind === FrameKind.value) {
      const { contents, encodedObjects } = scanned;
      const arrival = openValueArrival(scanned, fds, this.#state);
      const isOpen = !('error' in arrival);
      const isServed = this.#receiveQueue.add(arrival, {
        byteLength: bytes.byteLength + encodedObjects.length * QUEUED_OBJECT_BYTE_LENGTH,
        fdCount: isOpen ? fds.length : 0,
      });
      // Keeps the bytes until a caller takes the value.
      if (isSingleFrame && isOpen) contents.copyBytes();
      return isServed;
    }
    if (kind === FrameKind.request) this.#verifier.respond(scanned, fds);
    else this.#verifier.receiveResponse(scanned, fds);
    return kind === FrameKind.response;
  }

  /** As {@link FramedSocketHandler}. */
  onSocketEnd(): void {
    const { process } = this.#state;
    const { isEnding } = process;
    // The end of the process tells more than the end of its socket, and comes soon after.
    const isSoonKnown = process.isGone
      ? this.#isExitAwaited
      : process.isExitObservable && isEnding !== false;
    if (this.#end || !isSoonKnown) {
      this.#finish(this.#endReason(), 'break');
      return;
    }
    this.#controlReceiver.isStalled = true;
    if (isEnding !== undefined) return;
    setTimeout(() => {
      // If the process is gone, more is known already or will be.
      if (!this.#end && !process.isGone) this.#finish(this.#endReason(), 'break');
    }, MAX_EXIT_MS).unref();
  }

  /** As {@link FramedSocketHandler}. */
  onFailure(error: unknown): void {
    // Catches everything: a message of another process must not crash this one.
    const reason = error instanceof Error ? error.message : String(error);
    this.fail(
      withoutStack(new IpcError(`the connection to ${this.peerName} was closed: ${reason}`)),
    );
  }

  /** As {@link FramedSocketHandler}. */
  onDrained(): void {
    if (this.#end) this.#keepAliveWhileSending();
    this.#sendControl();
  }

  /**
   * @param how 'close' notifies the peer, and leases continue; 'break' closes the socket at once
   */
  #finish(reason: ConnectionEnd, how: 'close' | 'break'): void {
    const isFirst = this.#end === undefined;
    this.#end ??= reason;
    this.#isPaused = false;
    if (how === 'break') this.#closeSocket();
    else if (isFirst) this.#beginClosing(this.#end);
    if (!isFirst) return;
    this.onEnd?.(reason);
    this.#verifier.end(reason);
    this.#receiveQueue.end(reason);
    if (this.#receiveQueue.isDrained) this.#onReceivingOver();
  }

  #onPeerGone(): void {
    this.#controlReceiver.isStalled = false;
    this.#socket.markPeerGone();
  }

  #onPeerClosed(): void {
    this.#state.isClosedByPeer = true;
    this.#finish(closedByPeerError(this.peerName), 'close');
  }

  /**
   * Completes the messages that are being sent and waits for all leases; then the socket is closed.
   */
  #beginClosing(reason: ConnectionEnd): void {
    if (!this.#socket.isOpen) return;
    const { sendQueue } = this.#socket;
    sendQueue.rejectUnstarted(reason);
    try {
      if (!this.#controlSender.sendClosing()) this.#retryControl();
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
    this.#closeIfUnused();
  }

  /** Closes the socket of an ended connection once no leases are in use. */
  #closeIfUnused(): void {
    if (!this.#end || !this.#socket.isOpen || this.#state.isInUse) return;
    if (!this.#socket.sendQueue.isEmpty) {
      // The peer's time to read is over.
      if (!this.#closeTimer) this.#closeSocket();
      return;
    }
    try {
      if (!this.#isDoneSent) this.#controlSender.sendDone();
    } catch (error) {
      this.onFailure(error);
      return;
    }
    this.#isDoneSent = true;
    // Otherwise the socket is closed after the queued message.
    if (this.#socket.sendQueue.isEmpty) this.#closeSocket();
  }

  #closeSocket(): void {
    clearTimeout(this.#closeTimer);
    this.#closeTimer = undefined;
    if (!this.#socket.isOpen) return;
    connections.delete(this);
    this.#socket.close(this.#end as ConnectionEnd);
    this.#endStateIfUnused();
  }

  /** Ends the state once no message can come or go, and no received value is left. */
  #endStateIfUnused(): void {
    if (!this.#socket.isOpen && this.#receiveQueue.isDrained) this.#state.end();
  }

  #sendControl(): void {
    clearImmediate(this.#controlImmediate);
    this.#controlImmediate = undefined;
    // Messages in the queue take the control entries along, or `onDrained` follows them.
    if (!this.#socket.isOpen || !this.#socket.sendQueue.isEmpty) return;
    try {
      if (!this.#controlSender.sendPending()) this.#retryControl();
    } catch (error) {
      this.onFailure(error);
      return;
    }
    this.#closeIfUnused();
  }

  #retryControl(): void {
    this.#controlRetry ??= setTimeout(() => {
      this.#controlRetry = undefined;
      this.#sendControl();
    }, RETRY_MS).unref();
  }

  #onReceivingOver(): void {
    this.#state.endReceiving();
    this.#controlReceiver.clearCache();
    this.#endStateIfUnused();
    this.onDrainedAfterEnd?.();
    this.onDrainedAfterEnd = undefined;
  }

  /** Returns why the socket ended without a control message. */
  #endReason(): ConnectionEnd {
    const { isGone, process } = this.#state;
    return isGone || process.isEnding || !process.isExitObservable
      ? withoutStack(this.#state.goneError())
      : closedByPeerError(this.peerName);
  }

  /** Ends the connection after a failed send, and returns the error. */
  #sendFailed(error: SystemError): unknown {
    const failure = new IpcError(`nothing can be sent to ${this.peerName}: ${error.message}`);
    this.fail(failure);
    return failure;
  }
}

const closedByPeerError = (other: string): ClosedError =>
  withoutStack(new ClosedError(`this Peer is closed: ${other} has closed the connection`));

/** An error found by the event loop has no caller, so its stack would only show the loop. */
function withoutStack<T extends Error>(error: T): T {
  error.stack = String(error);
  return error;
}
