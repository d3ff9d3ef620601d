import { isMainThread } from 'node:worker_threads';
import { discardFds } from '../../../ffi/linux/close-fd.ts';
import type { SystemError } from '../../../ffi/linux/libc.ts';
import { closeSocket } from '../../../ffi/linux/socket.ts';
import { ClosedError, IpcError, type PeerGoneError } from '../../errors.ts';
import { refuseInCapture } from '../../graph-capture.ts';
import type { Stream } from '../../stream.ts';
import type { PeerProcess } from '../lease/peer-process.ts';
import { Polling } from '../wire/busy-poll.ts';
import { Wire, type WireUser } from '../wire/framed-socket.ts';
import { type Arrived, PacketKind } from '../wire/frames.ts';
import { WAITING_OBJECT_BYTE_LENGTH } from '../wire/limits.ts';
import type { ScannedValue, ValueScan } from '../wire/value-decoder.ts';
import { Hearing, News } from './control.ts';
import { Session } from './peer-state.ts';
import { Delivery, openValueArrival } from './receive.ts';
import { Inbox } from './receive-queue.ts';
import { Sending } from './send.ts';
import { type Asker, Enquiry } from './verification.ts';

/** Why a connection has ended. */
export type ConnectionEnd = ClosedError | PeerGoneError | IpcError;

/**
 * How long an end that is closed, and shares nothing with the other one, waits for that to read what
 * was begun to be sent; the process stays alive for it as long.
 */
const CLOSING_MS = 2000;
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
  for (const connection of connections) connection.threadEnds(code === 0);
});

/** One end of a connection: the values that came, and those that are to go. */
export class Connection implements WireUser {
  /** Who is at the other end, in words. */
  readonly other: string;
  readonly sending: Sending;
  readonly polling: Polling;
  readonly #session: Session;
  readonly #inbox = new Inbox();
  readonly #wire: Wire;
  readonly #hearing: Hearing;
  readonly #delivery: Delivery;
  readonly #enquiry: Enquiry;
  readonly #news: News;
  #isPaused = false;
  #isExitAwaited = false;
  #isDoneSent = false;
  /** Whether a long value is being checked. */
  #isChecking = false;
  /** When what there is to be told is told. */
  #telling: NodeJS.Immediate | undefined;
  #tellingLater: NodeJS.Timeout | undefined;
  #closing: NodeJS.Timeout | undefined;
  #end: ConnectionEnd | undefined;
  /** Called once nothing can be sent, and nothing more comes. */
  onEnd: ((reason: ConnectionEnd) => void) | undefined;
  /** Called once nothing can be sent, and nothing is left to be received. */
  onOver: (() => void) | undefined;

  /** @param fd the socket, which is this connection's from now on, also where this throws */
  constructor(fd: number, other: string, process: PeerProcess, graceMs: number) {
    this.other = other;
    try {
      this.#session = new Session(process, other, graceMs);
    } catch (error) {
      closeSocket(fd);
      throw error;
    }
    try {
      this.#wire = new Wire(fd, this);
    } catch (error) {
      this.#session.end();
      throw error;
    }
    this.#news = new News(this.#session, this.#wire);
    this.sending = new Sending(this.#session, this.#wire, this.#news, {
      requireOpen: () => {
        if (this.#end) throw this.#end;
      },
      failed: (error) => this.#sendFailed(error),
    });
    this.#hearing = new Hearing(this.#session, () => this.#wire.resume());
    this.#delivery = new Delivery(this.#session, () => {
      this.#inbox.serve();
      if (this.#inbox.isOver) this.#tellOver();
    });
    this.#enquiry = new Enquiry(other, this.#session, this.sending, this.#delivery);
    this.polling = new Polling(this.#wire, {
      isAwaited: () => this.#inbox.isAwaited || this.#enquiry.isAwaited,
      tellNews: () => this.#telling && this.#tellNews(),
    });
    this.#session.onNews = () => {
      this.#telling ??= setImmediate(() => this.#tellNews());
    };
    this.#session.onGone = () => this.#otherIsGone();
    if (this.#session.isGone) setImmediate(() => this.#otherIsGone());
    connections.add(this);
  }

  /** Why it ended: a ClosedError if that is nobody's fault. */
  get end(): ConnectionEnd | undefined {
    return this.#end;
  }

  /** Asks for the next value; answers with the way to ask no more. */
  take(
    resolve: (value: unknown) => void,
    reject: (error: unknown) => void,
    stream?: Stream,
  ): () => void {
    refuseInCapture('receiving');
    if (this.#inbox.isIdle && !this.#hearing.isStalled && !this.#isChecking)
      this.#wire.takeAtOnce();
    const cancel = this.#inbox.take(
      (received) => this.#delivery.give(received, { resolve, reject, stream }),
      reject,
    );
    if (this.#isPaused && this.#inbox.hasRoom) {
      this.#isPaused = false;
      this.#wire.resume();
    }
    if (this.#inbox.isOver) this.#tellOver();
    this.polling.begin();
    return cancel;
  }

  /** As {@link Enquiry.ask}. */
  ask(asker: Asker): void {
    this.#enquiry.ask(asker);
    this.polling.begin();
  }

  /** The other process is a child of this one: how it ends will be known. */
  awaitExit(): void {
    this.#isExitAwaited = true;
  }

  /** How the child has ended is known. */
  exitIsKnown(): void {
    this.#isExitAwaited = false;
    this.#otherIsGone();
  }

  /**
   * Ends it here: what was begun to be sent goes out, the rest is dropped, and what arrived or still
   * arrives is given back. The second time does nothing.
   */
  close(): void {
    this.#finish(new ClosedError('this Peer is closed'), 'close');
    this.#inbox.clear();
    this.#delivery.stop();
    this.#tellOver();
    this.#closeUnused();
    // Where the other end is gone nothing has to be waited for.
    if (this.#wire.isEnding) this.#wire.readToEnd();
  }

  /**
   * This thread runs nothing after this. An exit without error is an orderly end, which nothing but a
   * note tells from a crash, unless work that the other end waits for would be lost.
   */
  threadEnds(isOrderly: boolean): void {
    const isLost = this.#session.ordering.isAwaited;
    if (isOrderly && !isLost) this.#finish(new ClosedError('this Peer is closed'), 'close');
    // The kernel closes it with the process; with a worker thread nobody does.
    if (!isMainThread) this.#finish(new ClosedError('this Peer is closed'), 'break');
  }

  /** Ends it because of what the other end did: that is told after what came before. */
  fail(error: IpcError): void {
    this.#finish(error, 'break');
  }

  setReferenced(isReferenced: boolean): void {
    if (!this.#end) this.#wire.setReferenced(isReferenced);
  }

  /** As {@link WireUser}. */
  wantsMore(): boolean {
    if (this.#hearing.isStalled || this.#isChecking) return false;
    if (this.#wire.isEnding) return true;
    if (this.#end === undefined && this.#inbox.isFull) this.#isPaused = true;
    return !this.#isPaused;
  }

  /** As {@link WireUser}. */
  arrived(arrived: Arrived): boolean {
    if (arrived.kind === PacketKind.news) {
      const { isClosing, isDone } = this.#hearing.news(arrived);
      if (isClosing || isDone) this.#otherHasClosed();
      if (isDone) this.#session.otherIsDone();
      this.#closeUnused();
      return false;
    }
    return this.#check(arrived, this.#hearing.scan(arrived));
  }

  /** Checks a value, and takes it; a long one between turns of the loop: what follows it waits. */
  #check(arrived: Arrived, scan: ValueScan): boolean {
    const scanned = this.#hearing.value(arrived, scan);
    this.#isChecking = scanned === undefined;
    if (scanned) return this.#taken(arrived, scanned);
    setImmediate(() => {
      if (!this.#wire.isOpen) {
        discardFds(arrived.fds);
        return;
      }
      try {
        this.#check(arrived, scan);
      } catch (error) {
        this.#isChecking = false;
        this.failed(error);
      }
      if (!this.#isChecking) this.#wire.resume();
    });
    return false;
  }

  /** Takes a value that is sound; answers whether someone waited for it. */
  #taken({ kind, fds, bytes, isOfMessage }: Arrived, scanned: ScannedValue): boolean {
    if (this.#end) {
      // Sent before the other end knew: it gets back what it lent.
      discardFds(fds);
      if (scanned.tail.leases) this.#session.borrowed.refuse(scanned.tail.leases);
      return false;
    }
    if (kind === PacketKind.value) {
      const { contents, slots } = scanned;
      const arrival = openValueArrival(scanned, fds, this.#session);
      const isOpen = !('error' in arrival);
      const isServed = this.#inbox.put(arrival, {
        byteLength: bytes.byteLength + slots.length * WAITING_OBJECT_BYTE_LENGTH,
        fdCount: isOpen ? fds.length : 0,
      });
      // Until someone takes it.
      if (isOfMessage && isOpen) contents.keep();
      return isServed;
    }
    if (kind === PacketKind.question) this.#enquiry.answer(scanned, fds);
    else this.#enquiry.answered(scanned, fds);
    return kind === PacketKind.answer;
  }

  /** As {@link WireUser}. */
  ended(): void {
    const { process } = this.#session;
    const { isEnding } = process;
    // The end of the process says more than that of its socket, and comes soon.
    const isSoonKnown = process.isGone ? this.#isExitAwaited : process.isSeen && isEnding !== false;
    if (this.#end || !isSoonKnown) {
      this.#finish(this.#ended(), 'break');
      return;
    }
    this.#hearing.isStalled = true;
    if (isEnding !== undefined) return;
    setTimeout(() => {
      // Of one that is gone more is known, or will be.
      if (!this.#end && !process.isGone) this.#finish(this.#ended(), 'break');
    }, MAX_EXIT_MS).unref();
  }

  /** As {@link WireUser}. */
  failed(error: unknown): void {
    // Whatever it is: the process must not end because of another one's message.
    const reason = error instanceof Error ? error.message : String(error);
    this.fail(withoutStack(new IpcError(`the connection to ${this.other} was closed: ${reason}`)));
  }

  /** As {@link WireUser}. */
  drained(): void {
    if (this.#end) this.#keepAliveWhileSending();
    this.#tellNews();
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
    this.#enquiry.end(reason);
    this.#inbox.end(reason);
    if (this.#inbox.isOver) this.#tellOver();
  }

  #otherIsGone(): void {
    this.#hearing.isStalled = false;
    this.#wire.otherIsGone();
  }

  #otherHasClosed(): void {
    this.#session.hasClosed = true;
    this.#finish(closedByOther(this.other), 'close');
  }

  /** What was begun is finished, and what is lent either way is given back: then the socket goes. */
  #beginClosing(reason: ConnectionEnd): void {
    if (!this.#wire.isOpen) return;
    const { outbox } = this.#wire;
    outbox.rejectUnbegun(reason);
    try {
      if (!this.#news.postClosing()) this.#tellLater();
    } catch (error) {
      this.failed(error);
      return;
    }
    this.#closing = setTimeout(() => this.#closeUnread(), CLOSING_MS).unref();
    this.#keepAliveWhileSending();
    // It may have been paused: what still comes is given back.
    this.#wire.resume();
  }

  #keepAliveWhileSending(): void {
    this.#wire.setReferenced(this.#closing !== undefined && !this.#wire.outbox.isEmpty);
  }

  /** The other end does not read: it is not waited for, unless one has something of the other. */
  #closeUnread(): void {
    this.#closing = undefined;
    this.#keepAliveWhileSending();
    this.#closeUnused();
  }

  /** Closes the socket of a connection that has ended, when nothing is left to be given back. */
  #closeUnused(): void {
    if (!this.#end || !this.#wire.isOpen || this.#session.isInUse) return;
    if (!this.#wire.outbox.isEmpty) {
      // The time for the other end to read is over.
      if (!this.#closing) this.#closeSocket();
      return;
    }
    try {
      if (!this.#isDoneSent) this.#news.postDone();
    } catch (error) {
      this.failed(error);
      return;
    }
    this.#isDoneSent = true;
    // What could not go out yet is followed by the end.
    if (this.#wire.outbox.isEmpty) this.#closeSocket();
  }

  #closeSocket(): void {
    clearTimeout(this.#closing);
    this.#closing = undefined;
    if (!this.#wire.isOpen) return;
    connections.delete(this);
    this.#wire.close(this.#end as ConnectionEnd);
    this.#endSession();
  }

  /** Nothing is told or heard any more, and no value is left that work comes behind. */
  #endSession(): void {
    if (!this.#wire.isOpen && this.#inbox.isOver) this.#session.end();
  }

  #tellNews(): void {
    clearImmediate(this.#telling);
    this.#telling = undefined;
    // What waits to go out takes it along, or is followed by it.
    if (!this.#wire.isOpen || !this.#wire.outbox.isEmpty) return;
    try {
      if (!this.#news.post()) this.#tellLater();
    } catch (error) {
      this.failed(error);
      return;
    }
    this.#closeUnused();
  }

  #tellLater(): void {
    this.#tellingLater ??= setTimeout(() => {
      this.#tellingLater = undefined;
      this.#tellNews();
    }, RETRY_MS).unref();
  }

  #tellOver(): void {
    this.#session.endValues();
    this.#hearing.forget();
    this.#endSession();
    this.onOver?.();
    this.onOver = undefined;
  }

  /** Why nothing comes where no note has told it. */
  #ended(): ConnectionEnd {
    const { isGone, process } = this.#session;
    return isGone || process.isEnding || !process.isSeen
      ? withoutStack(this.#session.goneError())
      : closedByOther(this.other);
  }

  /** What a failed send means: the socket is of no use. */
  #sendFailed(error: SystemError): unknown {
    const failure = new IpcError(`nothing can be sent to ${this.other}: ${error.message}`);
    this.fail(failure);
    return failure;
  }
}

const closedByOther = (other: string): ClosedError =>
  withoutStack(new ClosedError(`this Peer is closed: ${other} has closed the connection`));

/** What the event loop finds out has no caller: the frames would be those of the loop. */
function withoutStack<T extends Error>(error: T): T {
  error.stack = String(error);
  return error;
}
