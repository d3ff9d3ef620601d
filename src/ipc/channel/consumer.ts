import type { Context } from '../../context.ts';
import type { Wait } from '../../deadline.ts';
import type { Device } from '../../device.ts';
import { ClosedError, CuffiError, IpcError, PeerGoneError } from '../../errors.ts';
import { counted } from '../../inspect.ts';
import { closedMessage, type ResourceState, releaseOrWarn } from '../../lifetime.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import { isTurnDue, pollInBackground } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { TrackedStores } from '../timeline/stores.ts';
import { enqueueWaits } from '../timeline/waits.ts';
import { type MessageLayout, type MessageRecord, readRecord } from './message.ts';
import type { Delivery } from './producer.ts';
import type { Ring, Seat } from './ring.ts';
import { Sleepers } from './sleepers.ts';
import { hasRoomAhead, MAX_AHEAD, SlotViews, waitForRoomAhead } from './slots.ts';
import type { WakeSockets } from './wake-sockets.ts';

/** What a consumer is made of. */
export interface ConsumerInit {
  readonly ring: Ring;
  readonly seat: Seat;
  /** The slots, one after the other. */
  readonly memory: DeviceBuffer;
  readonly layout: MessageLayout;
  readonly byteLength: number;
  readonly stride: number;
  readonly deliver: Delivery;
  readonly isAhead: boolean;
  /** Opens the sockets to the producer. */
  openSockets(onWake: () => void): WakeSockets;
  /** Called when nothing here can access the slots any more. */
  onReleased?: (() => void) | undefined;
}

/** A message that was received. */
export interface Taken {
  readonly message: number;
  readonly record: MessageRecord;
  readonly redelivered: boolean;
}

/** What a look into the ring found: a message, the end, or nothing yet. */
type Found = Taken | 'end' | undefined;

/** A consumer of a channel. It outlives its {@link ChannelConsumer} until its work is done. */
export class Consumer {
  /** How many messages were received, and released. */
  received = 0;
  released = 0;
  readonly context: Context;
  readonly ring: Ring;
  readonly layout: MessageLayout;
  readonly byteLength: number;
  readonly deliver: Delivery;
  readonly isAhead: boolean;
  readonly sleepers: Sleepers;
  readonly #seat: Seat;
  readonly #memory: DeviceBuffer;
  readonly views: SlotViews;
  readonly #sockets: WakeSockets;
  readonly #stores: TrackedStores;
  readonly #onReleased: (() => void) | undefined;
  /** The next message; with `deliver: 'one'`, how many grants were taken. */
  #next: number;
  /** Messages that were received and not released. */
  readonly #held = new Set<number>();
  /** Up to here, slots that were taken ahead are filled. */
  #filledUpTo: number;
  #isClosed = false;
  /** The state of what its user holds, which says what closed it. */
  resource: ResourceState | undefined;
  #hasEndedWaits = false;

  constructor(init: ConsumerInit) {
    const { ring, seat, memory, layout, byteLength, stride, deliver, isAhead } = init;
    this.context = memory.context;
    this.ring = ring;
    this.layout = layout;
    this.byteLength = byteLength;
    this.deliver = deliver;
    this.isAhead = isAhead;
    this.#seat = seat;
    this.#memory = memory;
    const plan = { slots: ring.slots, stride, byteLength, layout };
    this.views = new SlotViews(memory, plan);
    this.#onReleased = init.onReleased;
    const { start } = seat;
    if (!Number.isSafeInteger(start) || start < 0)
      throw new IpcError('received a channel whose first message has no number');
    this.#next = deliver === 'one' ? 0 : start;
    this.#filledUpTo = this.#next;
    this.sleepers = new Sleepers((isAsleep) => seat.setAsleep(isAsleep));
    this.#stores = new TrackedStores(seat.words, {
      onStored: () => this.#wakeProducer(),
      isAwaited: () => ring.isProducerAsleep,
      isLazy: isAhead,
    });
    this.#sockets = init.openSockets(() => this.#onWake());
    // From now on its streams can wait for this consumer.
    if (isAhead) this.#wakeProducer();
  }

  assertOpen(): void {
    if (this.#isClosed) throw new ClosedError(closedMessage('ChannelConsumer', this.resource));
  }

  allowAccess(device: Device | number): void {
    this.#memory.allowAccess(device);
  }

  // ---- Receiving ----

  /** Returns the next message; undefined at the end. */
  async take(wait: Wait): Promise<Taken | undefined> {
    wait.signal?.throwIfAborted();
    let found = isTurnDue() ? undefined : this.#look();
    const poll = (): boolean => {
      this.assertOpen();
      found = this.#look();
      return found !== undefined;
    };
    if (found === undefined) await this.sleepers.wait(poll, wait);
    return found === 'end' ? undefined : found;
  }

  #look(): Found {
    // Read first: what was stored before the producer ended is then seen.
    const isProducerGone = this.#sockets.hasEnded;
    const found = this.deliver === 'one' ? this.#lookForGrant() : this.#lookForNext();
    if (found === undefined && isProducerGone) throw this.#goneError();
    return found;
  }

  #lookForNext(): Found {
    const { ring } = this;
    // A hostile producer might skip messages for ever.
    for (let skipped = 0; skipped <= ring.slots; skipped += 1) {
      const message = this.#next;
      const published = this.#publishedCount();
      if (message >= published) {
        const { closedAt } = ring;
        return closedAt !== undefined && message >= closedAt ? 'end' : undefined;
      }
      // For a consumer that takes slots ahead, messages are published before it has released their slots.
      if (published > message + ring.slots && !this.isAhead)
        throw invalidRing('a message was published into a slot that was not released');
      if (!ring.isFilled(message)) return undefined;
      this.#next += 1;
      const record = this.#recordOf(message);
      if (!record.isSkipped) return this.#hold({ message, record, redelivered: false });
      this.#seat.words.advanceTo(this.#seat.released(message));
    }
    return undefined;
  }

  #lookForGrant(): Found {
    const { ring } = this;
    const seat = this.#seat;
    if (seat.granted > this.#next) {
      const { message, redelivered } = seat.grantAt(this.#next);
      if (!Number.isSafeInteger(message) || message < 0 || message >= this.#publishedCount())
        throw invalidRing('a message was granted that was not published');
      if (!ring.isFilled(message)) return undefined;
      this.#next += 1;
      return this.#hold({ message, record: this.#recordOf(message), redelivered });
    }
    if (seat.isFinished) return 'end';
    if (seat.wanted <= this.#next) {
      seat.setWanted(this.#next + 1);
      this.#wakeProducer();
    }
    return undefined;
  }

  #publishedCount(): number {
    const { published } = this.ring;
    if (!Number.isSafeInteger(published) || published < 0)
      throw invalidRing('the number of published messages is invalid');
    return published;
  }

  /** @throws IpcError for an invalid record; the message is then over */
  #recordOf(message: number): MessageRecord {
    const record = this.ring.record(message);
    if (!record) return {};
    try {
      return readRecord(record, this.byteLength);
    } catch (error) {
      this.#seat.words.advanceTo(this.#seat.released(message));
      throw error;
    }
  }

  #hold(taken: Taken): Taken {
    this.#held.add(taken.message);
    return taken;
  }

  #goneError(): PeerGoneError {
    const pid = this.ring.producerPid;
    const who =
      pid === 0 ? 'the producer of this channel' : `process ${pid}, the producer of this channel,`;
    return new PeerGoneError(
      `${who} has ended without closing it: messages that were not complete are lost`,
      { pid, abandonedWaits: 0 },
    );
  }

  /** Why no message comes, for a time-out. */
  readonly messageHint = (): string => {
    const published = this.ring.published;
    if (this.deliver === 'all' && this.#next < published)
      return `${this.#producerName} has published message ${this.#next}, but its work is not done`;
    return `${this.#producerName} has published ${counted(published, 'message')}, and none is left for this consumer`;
  };

  /** Why no slot can be taken ahead, for a time-out. */
  readonly aheadHint = (): string =>
    `message ${this.#next} is ${this.#next - this.#filledUpTo} ahead of what is filled: ` +
    `${this.#producerName} has published ${counted(this.ring.published, 'message')}`;

  /** Why a message is not filled, for a time-out. */
  filledHint(message: number): string {
    return message < this.ring.published
      ? `${this.#producerName} has published it, but its work is not done`
      : `${this.#producerName} has published ${counted(this.ring.published, 'message')}`;
  }

  get #producerName(): string {
    const { producerPid } = this.ring;
    return producerPid === 0 ? 'the producer' : `process ${producerPid}`;
  }

  // ---- Ahead ----

  /** Makes a stream wait for the next message, and returns its number; undefined at the end. */
  async takeAhead(stream: Stream, wait: Wait): Promise<number | undefined> {
    if (!hasRoomAhead(stream)) await waitForRoomAhead(stream, () => this.assertOpen(), wait);
    let taken = isTurnDue() ? undefined : this.#tryTakeAhead(stream);
    const poll = (): boolean => {
      taken = this.#tryTakeAhead(stream);
      return taken !== undefined;
    };
    if (taken === undefined) await this.sleepers.wait(poll, wait);
    return taken === 'end' ? undefined : taken;
  }

  /** As {@link takeAhead}, without waiting: undefined if there is no room now. */
  #tryTakeAhead(stream: Stream): number | 'end' | undefined {
    this.assertOpen();
    const { ring } = this;
    const isProducerGone = this.#sockets.hasEnded;
    const message = this.#next;
    const { closedAt } = ring;
    if (closedAt !== undefined && message >= closedAt) return 'end';
    const isFilled = ring.isFilled(message);
    if (isProducerGone && !isFilled) throw this.#goneError();
    if (this.#held.has(message - ring.slots))
      throw new CuffiError(
        `message ${message} needs the slot of message ${message - ring.slots}: release that first`,
      );
    if (!this.#hasRoomAhead(message) || !hasRoomAhead(stream)) return undefined;
    if (!isFilled) {
      // The host waits instead.
      if (!ring.words.isMemoryFixed) return undefined;
      const wait = enqueueWaits(ring.words, [ring.filled(message)], stream.context, stream);
      if (wait === 'full') return undefined;
    }
    this.#held.add(message);
    this.#next += 1;
    return message;
  }

  #hasRoomAhead(message: number): boolean {
    while (this.#filledUpTo < message && this.ring.isFilled(this.#filledUpTo))
      this.#filledUpTo += 1;
    return message - this.#filledUpTo < MAX_AHEAD;
  }

  /** Whether a message was filled in the end. */
  async filled(message: number, wait: Wait): Promise<boolean> {
    let isFilled = false;
    await this.sleepers.wait(() => {
      const isProducerGone = this.#sockets.hasEnded;
      isFilled = !this.#isClosed && this.ring.isFilled(message);
      if (isFilled) return true;
      this.assertOpen();
      const { closedAt } = this.ring;
      if (closedAt !== undefined && message >= closedAt) return true;
      if (isProducerGone) throw this.#goneError();
      return false;
    }, wait);
    return isFilled;
  }

  // ---- Releasing ----

  release(message: number, stream: Stream | undefined): void {
    this.assertOpen();
    const context = stream?.context ?? this.context;
    if (context !== this.context) this.context.workTracker.addOtherContext(context.workTracker);
    this.#stores.store(this.#seat.released(message), context, stream);
    this.#held.delete(message);
  }

  #wakeProducer(): void {
    if (this.ring.isProducerAsleep) this.#sockets.wake();
  }

  #onWake(): void {
    if (this.#sockets.hasEnded) this.#endWaits();
    this.sleepers.wake();
  }

  /** Frees the streams that wait for what the ended producer will not fill. */
  #endWaits(): void {
    if (!this.isAhead || this.#hasEndedWaits) return;
    this.#hasEndedWaits = true;
    const until = performance.now() + REPAIR_MS;
    this.ring.endWaits();
    // A device of the ended process may still write.
    pollInBackground(() => {
      if (!this.#isClosed) this.ring.endWaits();
      return this.#isClosed || performance.now() > until;
    });
  }

  /** Ends at the producer when the work that is queued here is done: it then fills the slots again. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.sleepers.wake();
    this.context.releases.enqueue(
      () => {
        // All is released. A producer whose host is blocked cannot end the waits of its streams itself.
        if (this.isAhead) this.#seat.endWaits();
        this.#sockets.close();
        this.ring.words.close();
        this.#seat.words.close();
        releaseOrWarn(() => this.#onReleased?.());
      },
      { mayBlock: false },
    );
    this.#memory.close();
  }
}

/** Messages counted in words, numbered from 0. */
/** For how long what a device of an ended process still writes is repaired. */
const REPAIR_MS = 2000;

const invalidRing = (why: string): IpcError =>
  new IpcError(`another process wrote invalid channel data: ${why}`);
