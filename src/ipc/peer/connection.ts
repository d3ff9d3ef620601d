import { closeFd, SystemError } from '../../../ffi/libc.ts';
import { ClosedError, IpcError } from '../../errors.ts';
import type { Stream } from '../../stream.ts';
import { passOn } from '../lease/passing.ts';
import type { PeerProcess } from '../lease/peer-process.ts';
import { asArray } from '../opened-array.ts';
import type { Arrived } from './assembly.ts';
import { ByteWriter } from './byte-writer.ts';
import { type DecodedValue, decodeValue, type KnownDescriptors } from './decode.ts';
import { Delivery } from './delivery.ts';
import { type Encoded, encodeValue } from './encode.ts';
import { Inbox } from './inbox.ts';
import { MAX_VALUE_FDS } from './limits.ts';
import { News } from './news.ts';
import { closeObjects, openValue } from './open.ts';
import { PacketKind } from './packet.ts';
import { type Asker, confirmed, numbered, Questions } from './questions.ts';
import { Session } from './session.ts';
import { isNothing, readNews, type Tail, writeTail } from './tail.ts';
import { isGone, Wire, type WireUser } from './wire.ts';

/** One end of a connection: the values that came, and those that are to go. */
export class Connection implements WireUser {
  /** Who is at the other end, in words. */
  readonly other: string;
  readonly #session: Session;
  readonly #known: KnownDescriptors = new Map();
  readonly #inbox = new Inbox();
  readonly #questions = new Questions();
  readonly #wire: Wire;
  #isPaused = false;
  /** Whether the host waits for work of the other end before it believes anything more. */
  #isStalled = false;
  readonly #delivery: Delivery;
  readonly #told: News;
  #news: NodeJS.Immediate | undefined;
  #end: ClosedError | IpcError | undefined;
  /** Called once nothing can be sent, and nothing more comes. */
  onEnd: ((reason: ClosedError | IpcError) => void) | undefined;
  /** Called once nothing can be sent, and nothing is left to be received. */
  onOver: (() => void) | undefined;

  /** @param fd the socket, which is this connection's from now on */
  constructor(fd: number, other: string, process: PeerProcess, graceMs: number) {
    this.other = other;
    this.#wire = new Wire(fd, this);
    this.#session = new Session(process, other, graceMs);
    this.#told = new News(this.#session, this.#wire);
    this.#delivery = new Delivery(this.#session, () => {
      this.#inbox.serve();
      if (this.#inbox.isOver) this.#tellOver();
    });
    this.#session.onNews = () => {
      this.#news ??= setImmediate(() => this.#tellNews());
    };
    const gone = (): void => {
      this.#isStalled = false;
      this.#wire.otherIsGone();
    };
    this.#session.onGone = gone;
    if (this.#session.isGone) setImmediate(gone);
  }

  /** Why it ended: a ClosedError where that is nobody's fault. */
  get end(): ClosedError | IpcError | undefined {
    return this.#end;
  }

  /**
   * Sends a value at once (then the answer is undefined), or as soon as there is room.
   *
   * @throws TypeError, RangeError, IpcError as {@link encodeValue}; ClosedError after the end
   */
  post(
    value: unknown,
    stream?: Stream,
    kind: PacketKind = PacketKind.value,
  ): Promise<void> | undefined {
    if (this.#end) throw this.#end;
    this.#wire.outbox.checkRoom();
    return ByteWriter.use((writer) =>
      encodeValue(writer, value, this.#session, (encoded) =>
        this.#post(writer, encoded, stream, kind),
      ),
    );
  }

  /**
   * Asks the other end for what a descriptor of it names.
   *
   * @throws IpcError for too many at a time; as {@link post}
   */
  ask(asker: Asker): void {
    const number = this.#questions.ask(asker);
    try {
      this.post([number, { ...asker.descriptor }], undefined, PacketKind.question)?.catch(() => {});
    } catch (error) {
      this.#questions.take(number);
      throw error;
    }
  }

  #post(
    writer: ByteWriter,
    { fds, objects }: Encoded,
    stream: Stream | undefined,
    kind: PacketKind,
  ): Promise<void> | undefined {
    // A getter in the value may have closed it.
    if (this.#end) throw this.#end;
    const session = this.#session;
    const points = session.readyPoints(objects, stream);
    const { kept, pipes, agreed } = passOn(objects, session.process);
    try {
      const all = pipes.length > 0 ? [...fds, ...pipes] : fds;
      checkFdCount(all.length);
      // The last that can fail while the other end lives: leases are numbered as they go out.
      const leases = session.lent.lend(objects, stream);
      const drop = leases.length > 0 ? () => session.lent.end(leases) : undefined;
      try {
        this.#told.tellPage();
        writer.endValue();
        writeTail(writer, { ...session.takeNews(points), kept });
        return this.#wire.post(kind, writer.written, all, drop, agreed);
      } catch (error) {
        drop?.();
        throw this.#sendFailed(error);
      }
    } finally {
      pipes.forEach(closeFd);
    }
  }

  /** Asks for the next value; answers with the way to ask no more. */
  take(
    resolve: (value: unknown) => void,
    reject: (error: unknown) => void,
    stream?: Stream,
  ): () => void {
    if (this.#inbox.isIdle && !this.#isStalled) this.#wire.takeAtOnce();
    const cancel = this.#inbox.take(
      (received) => this.#delivery.give(received, { resolve, reject, stream }),
      reject,
    );
    if (this.#isPaused && this.#inbox.hasRoom) {
      this.#isPaused = false;
      this.#wire.resume();
    }
    if (this.#inbox.isOver) this.#tellOver();
    return cancel;
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
    if (this.#isStalled) return false;
    // What a value here waits for comes behind those that nobody takes.
    const { isFull, isOverfull } = this.#inbox;
    const hasEnough = this.#session.adopting.isWaiting ? isOverfull : isFull;
    if (this.#end === undefined && hasEnough) this.#isPaused = true;
    return !this.#isPaused;
  }

  /** As {@link WireUser}. */
  arrived({ kind, bytes, fds }: Arrived): boolean {
    if (kind === PacketKind.news) {
      this.#heardNews(bytes, fds);
      return false;
    }
    let decoded: DecodedValue;
    try {
      decoded = decodeValue(bytes, fds.length, this.#known);
      this.#hear(decoded.tail, []);
      // Points without a page are refused.
      this.#session.ordering.isReached(decoded.tail.points);
    } catch (error) {
      fds.forEach(closeFd);
      throw error;
    }
    if (this.#end) {
      // Sent before the other end knew: it gets back what it lent.
      fds.forEach(closeFd);
      this.#session.borrowed.refuse(decoded.slots.length);
      return false;
    }
    if (kind === PacketKind.value)
      return this.#inbox.put(this.#opened(decoded, fds), bytes.byteLength);
    if (kind === PacketKind.question) this.#answer(decoded, fds);
    else this.#answered(decoded, fds);
    return false;
  }

  /** What the descriptor names goes back, or why it does not. */
  #answer({ root, slots }: DecodedValue, fds: readonly number[]): void {
    fds.forEach(closeFd);
    if (slots.length > 0) throw new IpcError('a question came with GPU objects');
    const [number, message] = numbered(root.value);
    const named = confirmed(message);
    // Where too much waits, as the other end does not read, it ends by this.
    this.post([number, named], undefined, PacketKind.answer)?.catch(() => {});
  }

  #answered(decoded: DecodedValue, fds: readonly number[]): void {
    let asker: Asker;
    try {
      asker = this.#questions.take(numbered(decoded.root.value)[0]);
    } catch (error) {
      fds.forEach(closeFd);
      throw error;
    }
    const arrival = this.#opened(decoded, fds);
    if ('error' in arrival) {
      asker.reject(arrival.error);
      return;
    }
    const [, named] = numbered(arrival.value);
    const [object, ...others] = arrival.objects;
    if (object !== undefined && object === named && others.length === 0) {
      const received = { ...arrival, value: asArray(object, asker.descriptor) };
      this.#delivery.give(received, asker, () => this.#delivery.give(received, asker));
      return;
    }
    closeObjects(arrival.objects);
    asker.reject(
      new IpcError(
        `${this.other} does not confirm this descriptor: ${String(named)}`,
        undefined,
        'exporter-gone',
      ),
    );
  }

  /** As {@link WireUser}. */
  ended(): void {
    const { process } = this.#session;
    // Its end says more than that of its socket, and comes soon.
    if (process.isSeen && !process.isGone && process.isEnding) this.#isStalled = true;
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

  #heardNews(bytes: Uint8Array, fds: readonly number[]): void {
    let tail: Tail;
    try {
      tail = readNews(bytes, fds.length);
    } catch (error) {
      fds.forEach(closeFd);
      throw error;
    }
    this.#hear(tail, fds);
    if (tail.isBye) this.#finish(this.#ended(), 'bye');
    this.#leaveUnused();
  }

  #hear(tail: Tail, fds: readonly number[]): void {
    if (isNothing(tail)) return;
    const unreached = this.#session.hear(tail, fds);
    if (unreached.length === 0) return;
    this.#isStalled = true;
    void this.#session.reached(unreached).then(() => {
      this.#isStalled = false;
      this.#wire.resume();
    });
  }

  /** A sound message about what cannot be opened here concerns those who take it, not the rest. */
  #opened(decoded: DecodedValue, fds: readonly number[]) {
    try {
      return openValue(decoded, fds, this.#session);
    } catch (error) {
      return { error };
    }
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
    this.#questions.rejectAll(reason);
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
    return this.#told.post(true) && this.#session.isInUse;
  }

  /** Closes the socket of a connection that has ended, when nothing is left to be given back. */
  #leaveUnused(): void {
    if (!this.#end || !this.#wire.isOpen || this.#session.isInUse) return;
    if (!this.#wire.outbox.isEmpty) return;
    this.#wire.close(this.#end);
    this.#endSession();
  }

  #tellNews(): void {
    clearImmediate(this.#news);
    this.#news = undefined;
    if (this.#isPaused && this.#session.adopting.isWaiting) {
      this.#isPaused = false;
      this.#wire.resume();
    }
    // What waits to go out takes it along, or is followed by it.
    if (!this.#wire.isOpen || !this.#wire.outbox.isEmpty) return;
    this.#told.post(false);
    this.#leaveUnused();
  }

  #tellOver(): void {
    this.#session.endValues();
    this.#known.clear();
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
  #sendFailed(error: unknown): unknown {
    if (!(error instanceof SystemError)) return error;
    if (isGone(error)) return this.#ended();
    const failure = new IpcError(`nothing can be sent to ${this.other}: ${error.message}`);
    this.fail(failure);
    return failure;
  }
}

function checkFdCount(count: number): void {
  if (count > MAX_VALUE_FDS)
    throw new RangeError(
      `the value has ${count} file descriptors, those included by which it is passed on: it may have ${MAX_VALUE_FDS}`,
    );
}
