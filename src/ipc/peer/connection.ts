import { discardFds } from '../../../ffi/discard.ts';
import type { SystemError } from '../../../ffi/libc.ts';
import { isGone } from '../../../ffi/message.ts';
import { closeSocket } from '../../../ffi/socket.ts';
import { refuseInCapture } from '../../capture.ts';
import { ClosedError, IpcError } from '../../errors.ts';
import type { Stream } from '../../stream.ts';
import type { PeerProcess } from '../lease/peer-process.ts';
import type { Arrived } from './assembly.ts';
import { Delivery } from './delivery.ts';
import { Enquiry } from './enquiry.ts';
import { Hearing } from './hearing.ts';
import { Inbox } from './inbox.ts';
import { News } from './news.ts';
import { openArrival } from './open.ts';
import { PacketKind } from './packet.ts';
import { Polling } from './polling.ts';
import type { Asker } from './questions.ts';
import { Sending } from './sending.ts';
import { Session } from './session.ts';
import { Wire, type WireUser } from './wire.ts';

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
  /** When what there is to be told is told. */
  #telling: NodeJS.Immediate | undefined;
  #end: ClosedError | IpcError | undefined;
  /** Called once nothing can be sent, and nothing more comes. */
  onEnd: ((reason: ClosedError | IpcError) => void) | undefined;
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
    const gone = (): void => {
      this.#hearing.isStalled = false;
      this.#wire.otherIsGone();
    };
    this.#session.onGone = gone;
    if (this.#session.isGone) setImmediate(gone);
  }

  /** Why it ended: a ClosedError where that is nobody's fault. */
  get end(): ClosedError | IpcError | undefined {
    return this.#end;
  }

  /** Asks for the next value; answers with the way to ask no more. */
  take(
    resolve: (value: unknown) => void,
    reject: (error: unknown) => void,
    stream?: Stream,
  ): () => void {
    refuseInCapture('receiving');
    if (this.#inbox.isIdle && !this.#hearing.isStalled) this.#wire.takeAtOnce();
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

  /** The other process has ended, where nobody but its parent can see that. */
  otherHasExited(): void {
    this.#session.process.hasEnded();
  }

  /** Ends it here, with all that was neither sent nor taken. The second time does nothing. */
  close(): void {
    this.#finish(new ClosedError('this Peer is closed'), 'bye');
    this.#inbox.clear();
    this.#tellOver();
    this.#leaveUnused();
  }

  /** Ends it because of what the other end did: that is told after what came before. */
  fail(error: IpcError): void {
    this.#finish(error, 'break');
  }

  setReferenced(isReferenced: boolean): void {
    this.#wire.setReferenced(isReferenced);
  }

  /** As {@link WireUser}. */
  wantsMore(): boolean {
    if (this.#hearing.isStalled) return false;
    if (this.#end === undefined && this.#inbox.isFull) this.#isPaused = true;
    return !this.#isPaused;
  }

  /** As {@link WireUser}. */
  arrived(arrived: Arrived): boolean {
    const { kind, fds } = arrived;
    if (kind === PacketKind.news) {
      if (this.#hearing.news(arrived).isBye) this.#finish(this.#ended(), 'bye');
      this.#leaveUnused();
      return false;
    }
    const decoded = this.#hearing.value(arrived);
    if (this.#end) {
      // Sent before the other end knew: it gets back what it lent.
      discardFds(fds);
      this.#session.borrowed.refuse(decoded.slots.length);
      return false;
    }
    if (kind === PacketKind.value) {
      const { byteLength } = arrived.bytes;
      return this.#inbox.put(openArrival(decoded, fds, this.#session), byteLength);
    }
    if (kind === PacketKind.question) this.#enquiry.answer(decoded, fds);
    else this.#enquiry.answered(decoded, fds);
    return kind === PacketKind.answer;
  }

  /** As {@link WireUser}. */
  ended(): void {
    const { process } = this.#session;
    // Its end says more than that of its socket, and comes soon.
    if (process.isSeen && !process.isGone && process.isEnding) this.#hearing.isStalled = true;
    else this.#finish(this.#ended(), 'break');
  }

  /** As {@link WireUser}. */
  failed(error: unknown): void {
    // Whatever it is: the process must not end because of another one's message.
    const reason = error instanceof Error ? error.message : String(error);
    this.fail(new IpcError(`the connection to ${this.other} was closed: ${reason}`));
  }

  /** As {@link WireUser}. */
  drained(): void {
    this.#tellNews();
  }

  /** @param how 'bye' tells the other end, which may still give back, and be given back, what was lent */
  #finish(reason: ClosedError | IpcError, how: 'bye' | 'break'): void {
    const isFirst = this.#end === undefined;
    this.#end ??= reason;
    this.#isPaused = false;
    if (this.#wire.isOpen && (how === 'break' || !this.#sayBye(isFirst))) {
      this.#wire.close(reason);
      this.#endSession();
    }
    if (!isFirst) return;
    this.onEnd?.(reason);
    this.#enquiry.end(reason);
    this.#inbox.end(reason);
    if (this.#inbox.isOver) this.#tellOver();
  }

  /** Nothing is told or heard any more, and no value is left that work comes behind. */
  #endSession(): void {
    if (!this.#wire.isOpen && this.#inbox.isOver) this.#session.end();
  }

  /** Answers whether the socket is left open. */
  #sayBye(isFirst: boolean): boolean {
    if (!isFirst) return true;
    const { outbox } = this.#wire;
    if (!outbox.rejectValues(this.#end)) return false;
    this.#wire.setReferenced(false);
    return this.#news.post(true) && this.#session.isInUse;
  }

  /** Closes the socket of a connection that has ended, when nothing is left to be given back. */
  #leaveUnused(): void {
    if (!this.#end || !this.#wire.isOpen || this.#session.isInUse) return;
    if (!this.#wire.outbox.isEmpty) return;
    this.#wire.close(this.#end);
    this.#endSession();
  }

  #tellNews(): void {
    clearImmediate(this.#telling);
    this.#telling = undefined;
    // What waits to go out takes it along, or is followed by it.
    if (!this.#wire.isOpen || !this.#wire.outbox.isEmpty) return;
    this.#news.post(false);
    this.#leaveUnused();
  }

  #tellOver(): void {
    this.#session.endValues();
    this.#hearing.forget();
    this.#endSession();
    this.onOver?.();
    this.onOver = undefined;
  }

  #ended(): ClosedError {
    const { isGone: isOver, process } = this.#session;
    return isOver || process.isEnding
      ? this.#session.goneError()
      : new ClosedError(`this Peer is closed: ${this.other} has closed the connection`);
  }

  /** What a failed send means: the other end may be gone, and what it sent be there still. */
  #sendFailed(error: SystemError): unknown {
    if (isGone(error)) return this.#ended();
    const failure = new IpcError(`nothing can be sent to ${this.other}: ${error.message}`);
    this.fail(failure);
    return failure;
  }
}
