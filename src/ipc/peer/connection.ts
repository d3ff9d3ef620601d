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
 * How long an end that is closed, and shares nothing with the other one, waits for that to read what
 * was begun to be sent; the process stays alive for it as long.
 */
const CLOSE_TIMEOUT_MS = 2000;
/** For what could not be told for lack of descriptors. */
const RETRY_MS = 5;
/**
 * How long the end of a process is waited for, whose socket has ended without a note, where nothing
 * but that end tells a crash from a mere close.
 */
const MAX_EXIT_MS = 2000;

/** The connections of this thread whose socket is open. */
const connections = new Set<Connection>();

process.on('exit', (code) => {
  for (const connection of connections) connection.onThreadExit(code === 0);
});

/** One end of a connection: the values that came, and those that are to go. */
export class Connection implements FramedSocketHandler {
  /** Who is at the other end, in words. */
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
  /** When what there is to be told is told. */
  #controlImmediate: NodeJS.Immediate | undefined;
  #controlRetry: NodeJS.Timeout | undefined;
  #closeTimer: NodeJS.Timeout | undefined;
  #end: ConnectionEnd | undefined;
  /** Called once nothing can be sent, and nothing more comes. */
  onEnd: ((reason: ConnectionEnd) => void) | undefined;
  /** Called once nothing can be sent, and nothing is left to be received. */
  onDrainedAfterEnd: (() => void) | undefined;

  /** @param fd the socket, which is this connection's from now on, also where this throws */
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

  /** Why it ended: a ClosedError if that is nobody's fault. */
  get end(): ConnectionEnd | undefined {
    return this.#end;
  }

  /** Asks for the next value; answers with the way to ask no more. */
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

  /** The other process is a child of this one: how it ends will be known. */
  awaitExit(): void {
    this.#isExitAwaited = true;
  }

  /** How the child has ended is known. */
  onExitKnown(): void {
    this.#isExitAwaited = false;
    this.#onPeerGone();
  }

  /**
   * Ends it here: what was begun to be sent goes out, the rest is dropped, and what arrived or still
   * arrives is given back. The second time does nothing.
   */
  close(): void {
    this.#finish(new ClosedError('this Peer is closed'), 'close');
    this.#receiveQueue.clear();
    this.#receiver.stop();
    this.#onReceivingOver();
    this.#closeIfUnused();
    // Where the other end is gone nothing has to be waited for.
    if (this.#socket.isEnding) this.#socket.readToEnd();
  }

  /**
   * This thread runs nothing after this. An exit without error is an orderly end, which nothing but a
   * note tells from a crash, unless work that the other end waits for would be lost.
   */
  onThreadExit(isOrderly: boolean): void {
    const isLost = this.#state.timeline.isAwaitedByPeer;
    if (isOrderly && !isLost) this.#finish(new ClosedError('this Peer is closed'), 'close');
    // The kernel closes it with the process; with a worker thread nobody does.
    if (!isMainThread) this.#finish(new ClosedError('this Peer is closed'), 'break');
  }

  /** Ends it because of what the other end did: that is told after what came before. */
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
    if (arrived.kind === FrameKind.news) {
      const { isClosing, isDone } = this.#controlReceiver.receiveControl(arrived);
      if (isClosing || isDone) this.#onPeerClosed();
      if (isDone) this.#state.onPeerDone();
      this.#closeIfUnused();
      return false;
    }
    return this.#check(arrived, this.#controlReceiver.scan(arrived));
  }

  /** Checks a value, and takes it; a long one between turns of the loop: what follows it waits. */
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

  /** Takes a value that is sound; answers whether someone waited for it. */
  #deliver({ kind, fds, bytes, isSingleFrame }: Message, scanned: ScannedValue): boolean {
    if (this.#end) {
      // Sent before the other end knew: it gets back what it lent.
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
      // Until someone takes it.
      if (isSingleFrame && isOpen) contents.copyBytes();
      return isServed;
    }
    if (kind === FrameKind.question) this.#verifier.respond(scanned, fds);
    else this.#verifier.receiveResponse(scanned, fds);
    return kind === FrameKind.answer;
  }

  /** As {@link FramedSocketHandler}. */
  onSocketEnd(): void {
    const { process } = this.#state;
    const { isEnding } = process;
    // The end of the process says more than that of its socket, and comes soon.
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
      // Of one that is gone more is known, or will be.
      if (!this.#end && !process.isGone) this.#finish(this.#endReason(), 'break');
    }, MAX_EXIT_MS).unref();
  }

  /** As {@link FramedSocketHandler}. */
  onFailure(error: unknown): void {
    // Whatever it is: the process must not end because of another one's message.
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

  /** @param how 'close' tells the other end, and leases go on; 'break' closes the socket at once */
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

  /** What was begun is finished, and what is lent either way is given back: then the socket goes. */
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
    // It may have been paused: what still comes is given back.
    this.#socket.resume();
  }

  #keepAliveWhileSending(): void {
    this.#socket.setReferenced(this.#closeTimer !== undefined && !this.#socket.sendQueue.isEmpty);
  }

  /** The other end does not read: it is not waited for, unless one has something of the other. */
  #onCloseTimeout(): void {
    this.#closeTimer = undefined;
    this.#keepAliveWhileSending();
    this.#closeIfUnused();
  }

  /** Closes the socket of a connection that has ended, when nothing is left to be given back. */
  #closeIfUnused(): void {
    if (!this.#end || !this.#socket.isOpen || this.#state.isInUse) return;
    if (!this.#socket.sendQueue.isEmpty) {
      // The time for the other end to read is over.
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
    // What could not go out yet is followed by the end.
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

  /** Nothing is told or heard any more, and no value is left that work comes behind. */
  #endStateIfUnused(): void {
    if (!this.#socket.isOpen && this.#receiveQueue.isDrained) this.#state.end();
  }

  #sendControl(): void {
    clearImmediate(this.#controlImmediate);
    this.#controlImmediate = undefined;
    // What waits to go out takes it along, or is followed by it.
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

  /** Why nothing comes where no note has told it. */
  #endReason(): ConnectionEnd {
    const { isGone, process } = this.#state;
    return isGone || process.isEnding || !process.isExitObservable
      ? withoutStack(this.#state.goneError())
      : closedByPeerError(this.peerName);
  }

  /** What a failed send means: the socket is of no use. */
  #sendFailed(error: SystemError): unknown {
    const failure = new IpcError(`nothing can be sent to ${this.peerName}: ${error.message}`);
    this.fail(failure);
    return failure;
  }
}

const closedByPeerError = (other: string): ClosedError =>
  withoutStack(new ClosedError(`this Peer is closed: ${other} has closed the connection`));

/** What the event loop finds out has no caller: the frames would be those of the loop. */
function withoutStack<T extends Error>(error: T): T {
  error.stack = String(error);
  return error;
}
