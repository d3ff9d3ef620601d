/** What a connection receives: a message becomes a value with opened objects, and is given to a caller. */

import { discardFds } from '../../../ffi/linux/close-fd.ts';
import { diagnostics, TrafficCounter } from '../../diagnostics.ts';
import { FrameKind } from '../protocol.ts';
import { type ControlBlock, readControlMessage } from '../wire/control-block.ts';
import type { FramedSocket } from '../wire/framed-socket.ts';
import type { Message } from '../wire/frames.ts';
import { typeOfMessage, type ValueMessage, ValueMessageReader } from '../wire/value-message.ts';
import { UnopenedMessage } from './arrival.ts';
import type { Control } from './control.ts';
import type { Readiness } from './readiness.ts';
import type { ReceiveQueue } from './receive-queue.ts';
import type { Requests } from './requests.ts';
import type { Session } from './session.ts';

/** The connection of an {@link Incoming}. */
export interface IncomingHost {
  /** Why no value is delivered any longer. */
  readonly end: Error | undefined;
  /** Handles that the peer broke the protocol. */
  onFailure(error: unknown): void;
  /** Handles that the peer has closed its end. */
  onClosedByPeer(): void;
  /** Handles that leases have ended. */
  onLessInUse(): void;
}

/** What an {@link Incoming} hands messages to. */
export interface Receivers {
  readonly session: Session;
  readonly socket: FramedSocket;
  readonly control: Control;
  readonly values: ReceiveQueue;
  readonly requests: Requests;
  readonly readiness: Readiness;
}

/** Checks the messages of the peer, one after the other, and hands each to its receiver. */
export class Incoming {
  readonly #to: Receivers;
  readonly #host: IncomingHost;
  /** All that has arrived. */
  readonly traffic = new TrafficCounter();
  /** Why nothing is read at the moment. */
  readonly #held = { byFullQueue: false, byHostWait: false, byLongValue: false };

  constructor(to: Receivers, host: IncomingHost) {
    this.#to = to;
    this.#host = host;
  }

  // ---- When messages are read ----

  /** Whether messages are wanted now. */
  wantsMore(): boolean {
    const held = this.#held;
    if (held.byHostWait || held.byLongValue) return false;
    if (this.#to.socket.isEnding) return true;
    if (!this.#host.end && (this.#to.values.isFull || this.#to.requests.isFull))
      held.byFullQueue = true;
    return !held.byFullQueue;
  }

  /** Reads a message that has arrived, without a turn of the event loop. */
  readNow(): void {
    const { byHostWait, byLongValue } = this.#held;
    if (!byHostWait && !byLongValue) this.#to.socket.readNow();
  }

  /** Reads on if values or answers were taken, so that there is room for more. */
  resumeIfRoom(): void {
    if (!this.#held.byFullQueue || this.#host.end) return;
    if (!this.#to.values.hasRoom || !this.#to.requests.hasRoom) return;
    this.#held.byFullQueue = false;
    this.#to.socket.resume();
  }

  /** Reads on although the queues are full: what still arrives is released. */
  drain(): void {
    this.#held.byFullQueue = false;
  }

  /** Reads nothing until it is known how the other process ended. */
  hold(): void {
    this.#held.byHostWait = true;
  }

  /** Ends {@link hold}, and the wait for the work of a process that is gone. */
  release(): void {
    this.#held.byHostWait = false;
  }

  // ---- Messages ----

  /** Takes a complete message. Returns whether a caller waited for it. @throws IpcError, SystemError */
  receive(arrived: Message): boolean {
    if (arrived.kind !== FrameKind.control)
      return this.#read(arrived, new ValueMessageReader(arrived.bytes));
    this.#receiveControl(arrived);
    return false;
  }

  #receiveControl({ bytes, fds, shortage }: Message): void {
    // Without the counters of the peer, or a link of a third process, order and memory are not safe.
    if (shortage) throw shortage;
    let block: ControlBlock;
    try {
      block = readControlMessage(bytes, fds.length);
    } catch (error) {
      discardFds(fds);
      throw error;
    }
    this.#apply(block, fds);
    const { session, readiness } = this.#to;
    if (block.begun !== 0) readiness.onPeerBegun(block.begun);
    if (block.isClosing || block.isDone) {
      session.isClosedByPeer = true;
      this.#host.onClosedByPeer();
    }
    // The peer holds nothing of this process, and opens nothing that is still on its way.
    if (block.isDone) session.exports.endAll();
    this.#host.onLessInUse();
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
    if (message) {
      this.#note(arrived, message.objects.entries.length);
      const unopened = new UnopenedMessage(arrived, message, this.#to.session);
      return this.#deliver(unopened, arrived.isSingleFrame);
    }
    setImmediate(() => this.#readOn(arrived, reader));
    return false;
  }

  #note({ kind, bytes: { byteLength } }: Message, objects: number): void {
    this.traffic.add(byteLength, objects);
    if (!diagnostics.peerReceive.isOn) return;
    const { pid } = this.#to.session.process;
    diagnostics.peerReceive.publish({ pid, type: typeOfMessage(kind), byteLength, objects });
  }

  #readOn(arrived: Message, reader: ValueMessageReader): void {
    if (!this.#to.socket.isOpen) {
      discardFds(arrived.fds);
      return;
    }
    try {
      this.#read(arrived, reader);
    } catch (error) {
      this.#host.onFailure(error);
    }
    if (!this.#held.byLongValue) this.#to.socket.resume();
  }

  /** Applies what came with a value. From then on, its objects must be opened or released. */
  #accept({ objects, control }: ValueMessage): void {
    const { timeline, imports } = this.#to.session;
    this.#apply(control, []);
    // Throws for points without a page.
    if (control.points.length > 0) timeline.isReached(control.points);
    if (objects.entries.length > 0) imports.add(objects.firstLease, objects.entries.length);
  }

  #apply(block: ControlBlock, fds: readonly number[]): void {
    const points = this.#to.control.apply(block, fds);
    if (points.length === 0) return;
    this.hold();
    void this.#to.session.whenReached(points).then(() => {
      this.release();
      this.#to.socket.resume();
    });
  }

  /** Hands a checked message to its receiver. Returns whether a caller waited for it. */
  #deliver(message: UnopenedMessage, isSingleFrame: boolean): boolean {
    try {
      // It was sent before the peer knew of the end.
      if (this.#host.end) return false;
      const isServed = this.#handOver(message);
      // Keeps the bytes until a caller takes the value.
      if (isSingleFrame) message.contents.value.copyBytes();
      if (!isServed) this.#to.readiness.check();
      return isServed;
    } finally {
      message.discard();
    }
  }

  #handOver(message: UnopenedMessage): boolean {
    const { requests, values } = this.#to;
    switch (message.kind) {
      case FrameKind.value: {
        const arrival = message.open();
        const { byteLength } = message.size;
        return values.add(arrival, 'error' in arrival ? { byteLength, fdCount: 0 } : message.size);
      }
      case FrameKind.request:
        return requests.receiveRequest(message);
      case FrameKind.verification:
        return requests.receiveVerification(message);
      case FrameKind.cancellation:
        return requests.receiveCancellation(message);
      case FrameKind.unserved:
        return requests.receiveRefusal(message);
      default:
        return requests.receiveAnswer(message);
    }
  }
}
