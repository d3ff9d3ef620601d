import type { Shape } from '../../array/shape.ts';
import type { Context, PlaceOptions } from '../../context.ts';
import type { Wait } from '../../deadline.ts';
import type { DtypeOrName } from '../../dtype.ts';
import { ClosedError, CuffiError } from '../../errors.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import { closedMessage, type ResourceState, releaseOrWarn } from '../../lifetime.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import { isTurnDue, pollInBackground } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import { checkInteger } from '../../validate.ts';
import { SLOT_ALIGNMENT } from '../protocol.ts';
import { TrackedStores } from '../timeline/stores.ts';
import { enqueueWaits } from '../timeline/waits.ts';
import { checkLayout, encodeMeta, type MessageLayout, writeRecord } from './message.ts';
import { namesOf, ProducerSeat } from './producer-seat.ts';
import { Ring } from './ring.ts';
import { Sleepers } from './sleepers.ts';
import { hasRoomAhead, SlotViews, waitForRoomAhead } from './slots.ts';

/** Whether each consumer gets each message, or each message goes to one consumer. */
export type Delivery = 'all' | 'one';

/** What a channel is made with, checked. */
export interface ProducerOptions
  extends Pick<Producer, 'layout' | 'byteLength' | 'deliver' | 'isAhead' | 'isReadOnly'> {
  readonly slots: number;
  readonly place: PlaceOptions;
}

/** The producer of a channel. It outlives its {@link Channel} until all is delivered. */
export class Producer {
  readonly context: Context;
  readonly ring: Ring;
  readonly memory: VirtualMemory;
  readonly layout: MessageLayout;
  readonly byteLength: number;
  readonly stride: number;
  readonly deliver: Delivery;
  readonly isAhead: boolean;
  readonly isReadOnly: boolean;
  readonly sleepers: Sleepers;
  readonly views: SlotViews;
  readonly #stores: TrackedStores;
  readonly #seats = new Set<ProducerSeat>();
  /** Seats whose descriptors were not exported yet. */
  readonly #unsent: ProducerSeat[] = [];
  /** Whether a consumer has the memory of the ring. With `ahead`, each other one has a copy. */
  #isRingTaken = false;
  #acquired = 0;
  #published = 0;
  /** Messages that were acquired after one that is not published yet, and are over. */
  readonly #waitingForEarlier = new Set<number>();
  readonly #skipped = new Set<number>();
  /** With `deliver: 'one'`: messages that no consumer has, in order, and the holders of the others. */
  readonly #ungranted: number[] = [];
  readonly #redelivered = new Set<number>();
  readonly #holders = new Map<number, ProducerSeat>();
  #isClosed = false;
  /** The state of what its user holds, which says what closed it. */
  resource: ResourceState | undefined;
  #failure: unknown;

  private constructor(
    init: Pick<
      Producer,
      'ring' | 'memory' | 'layout' | 'byteLength' | 'stride' | 'deliver' | 'isAhead' | 'isReadOnly'
    >,
  ) {
    const { ring, memory, layout, byteLength, stride } = init;
    this.context = memory.context;
    this.ring = ring;
    this.memory = memory;
    this.layout = layout;
    this.byteLength = byteLength;
    this.stride = stride;
    this.deliver = init.deliver;
    this.isAhead = init.isAhead;
    this.isReadOnly = init.isReadOnly;
    const plan = { slots: ring.slots, stride, byteLength, layout };
    this.views = new SlotViews(memory.buffer, plan);
    this.#stores = new TrackedStores(ring.words, {
      onStored: (error) => {
        if (error !== undefined) this.#fail(error);
        else this.#wakeConsumers();
      },
      isAwaited: () => this.#isAnyAsleep,
      isLazy: this.isAhead,
    });
    // Grants are asked for at any time.
    const isAlwaysAsleep = this.deliver === 'one';
    this.sleepers = new Sleepers((isAsleep) => ring.setProducerAsleep(isAsleep || isAlwaysAsleep));
    ring.setProducerAsleep(isAlwaysAsleep);
  }

  /** @throws NotSupportedError, CudaError, SystemError */
  static create({
    slots,
    layout,
    byteLength,
    deliver,
    isAhead,
    isReadOnly,
    place,
  }: ProducerOptions): Producer {
    // Copies and kernels are fastest at such addresses.
    const stride = Math.ceil(byteLength / SLOT_ALIGNMENT) * SLOT_ALIGNMENT;
    const total = checkInteger(stride * slots, 'the size of all slots', 1);
    assertNotCapturing('creating a channel');
    const memory = VirtualMemory.reserve(total, { ...place, shareable: true });
    try {
      memory.grow(total);
      const ring = Ring.create({ slots, hasRecords: !isAhead });
      return new Producer({
        ring,
        memory,
        layout,
        byteLength,
        stride,
        deliver,
        isAhead,
        isReadOnly,
      });
    } catch (error) {
      memory.close();
      throw error;
    }
  }

  get consumers(): number {
    return this.#seats.size;
  }

  get published(): number {
    return this.#published;
  }

  assertOpen(): void {
    if (this.#failure !== undefined)
      throw new CuffiError(
        'the context of this channel was lost before the work of a message was done',
        {
          cause: this.#failure,
        },
      );
    if (this.#isClosed) throw new ClosedError(closedMessage('Channel', this.resource));
  }

  // ---- Acquiring ----

  /** @param stream waits for the slot, if given */
  tryAcquire(stream?: Stream): number | undefined {
    this.assertOpen();
    if (stream && !hasRoomAhead(stream)) return undefined;
    const previous = this.#acquired - this.ring.slots;
    if (!(stream ? this.#enqueueWaits(previous, stream) : this.#isFree(previous))) return undefined;
    this.#skipped.delete(previous);
    this.#holders.delete(previous);
    this.#acquired += 1;
    return this.#acquired - 1;
  }

  async acquire(stream: Stream | undefined, wait: Wait): Promise<number> {
    if (stream && !hasRoomAhead(stream))
      await waitForRoomAhead(stream, () => this.assertOpen(), wait);
    let message = isTurnDue() ? undefined : this.tryAcquire(stream);
    const poll = (): boolean => {
      message = this.tryAcquire(stream);
      return message !== undefined;
    };
    if (message === undefined) await this.sleepers.wait(poll, wait);
    return message as number;
  }

  /**
   * Makes a stream wait until nobody uses a message. Returns false if there is no room for that now.
   *
   * @throws CuffiError if the message was not published
   */
  #enqueueWaits(message: number, stream: Stream): boolean {
    if (message < 0) return true;
    if (message >= this.#published)
      throw new CuffiError(`the slot of message ${message} was not published: publish it first`);
    const { ring } = this;
    let isReleasedByOthers = false;
    for (const { seat, start } of this.#seats) {
      if (start > message) continue;
      isReleasedByOthers = true;
      if (seat.isReleased(message)) continue;
      // The consumer has not opened the channel yet, or cannot keep its memory from being replaced.
      if (!seat.words.isMemoryFixed) return false;
      const wait = enqueueWaits(seat.words, [seat.released(message)], stream.context, stream);
      if (wait === 'full') return false;
    }
    // A consumer that has released it has waited until it was filled.
    if (isReleasedByOthers || ring.isFilled(message)) return true;
    return enqueueWaits(ring.words, [ring.filled(message)], stream.context, stream) !== 'full';
  }

  /** Whether nobody uses a message any more. */
  #isFree(message: number): boolean {
    if (message < 0) return true;
    if (message >= this.#published) return false;
    if (this.deliver === 'one') {
      this.#grantPending();
      return this.#isConsumed(message);
    }
    if (!this.ring.isFilled(message)) return false;
    for (const { seat, start } of this.#seats)
      if (start <= message && !seat.isReleased(message)) return false;
    return true;
  }

  /** How many slots somebody uses. */
  get inUse(): number {
    let count = 0;
    const first = Math.max(0, this.#acquired - this.ring.slots);
    for (let message = first; message < this.#acquired; message += 1)
      if (!this.#isFree(message)) count += 1;
    return count;
  }

  /** Why no slot is free, for a time-out. */
  readonly slotHint = (): string => {
    const previous = this.#acquired - this.ring.slots;
    return this.#whyInUse(previous) ?? 'the limit of waits behind earlier messages is reached';
  };

  /** Why a channel is not drained, for a time-out. */
  readonly drainHint = (): string | undefined => {
    const first = Math.max(0, this.#acquired - this.ring.slots);
    for (let message = first; message < this.#published; message += 1)
      if (!this.#isFree(message)) return this.#whyInUse(message);
    return undefined;
  };

  /** Who uses a message; undefined if nobody is known to. */
  #whyInUse(message: number): string | undefined {
    if (message < 0) return undefined;
    if (message >= this.#published)
      return `this process has acquired message ${message} and not published it: publish or cancel its slot`;
    if (!this.ring.isFilled(message))
      return `the work of this process that fills message ${message} is not done`;
    if (this.deliver === 'one' && !this.#holders.has(message)) {
      if (this.#isConsumed(message)) return undefined;
      return this.#seats.size === 0
        ? `no process consumes the channel, so nobody takes message ${message}`
        : `${namesOf(this.#seats)} asked for no further message, so nobody takes message ${message}`;
    }
    const holder = this.#holders.get(message);
    const holders = [...(holder ? [holder] : this.#seats)].filter(
      ({ seat, start }) => start <= message && !seat.isReleased(message),
    );
    return holders.length === 0
      ? undefined
      : `${namesOf(holders)} not released message ${message}: release() its slot there`;
  }

  // ---- Publishing ----

  publish(
    message: number,
    stream: Stream | undefined,
    meta: unknown,
    shape: number | Shape | undefined,
    dtype: DtypeOrName | undefined,
  ): void {
    const encoded = encodeMeta(meta);
    const hasLayout = shape !== undefined || dtype !== undefined;
    if (this.isAhead && (hasLayout || meta !== undefined))
      throw new TypeError(
        'messages of a channel with ahead have no meta, shape or dtype of their own',
      );
    const layout = hasLayout
      ? checkLayout(
          { shape: shape ?? this.layout.shape, dtype: dtype ?? this.layout.dtype },
          this.byteLength,
        )
      : undefined;
    const record = this.ring.record(message);
    if (record) writeRecord(record, { layout }, encoded);
    const context = stream?.context ?? this.context;
    if (context !== this.context) this.context.workTracker.addOtherContext(context.workTracker);
    const filled = this.ring.filled(message);
    if (this.isAhead) for (const seat of this.#seats) seat.storeFilled(filled, context, stream);
    this.#stores.store(filled, context, stream);
    this.#end(message);
  }

  cancel(message: number): void {
    if (this.#isClosed) return;
    if (message === this.#acquired - 1) {
      this.#acquired = message;
      // The previous user of the slot is no longer known.
      if (this.deliver === 'one') this.#skipped.add(message - this.ring.slots);
      return;
    }
    const record = this.ring.record(message);
    if (!record)
      throw new CuffiError(
        'a slot of a channel with ahead can only be canceled if it is the last one',
      );
    this.#skip(message, record);
  }

  #skip(message: number, record: Uint8Array): void {
    writeRecord(record, { isSkipped: true });
    this.#skipped.add(message);
    this.ring.words.advanceTo(this.ring.filled(message));
    this.#end(message);
  }

  /** Shows consumers the messages that are over, in order. */
  #end(message: number): void {
    this.#waitingForEarlier.add(message);
    while (this.#waitingForEarlier.delete(this.#published)) {
      const isSkipped = this.#skipped.has(this.#published);
      if (this.deliver === 'one' && !isSkipped) this.#ungranted.push(this.#published);
      this.#published += 1;
    }
    this.ring.publish(this.#published);
    this.#grantPending();
    this.#wakeConsumers();
  }

  get #isAnyAsleep(): boolean {
    for (const { seat } of this.#seats) if (seat.isAsleep) return true;
    return false;
  }

  #wakeConsumers(): void {
    for (const seat of this.#seats) seat.wakeIfAsleep();
  }

  // ---- Granting, with deliver: 'one' ----

  /** Whether a message was released by the consumer that it was granted to. */
  #isConsumed(message: number): boolean {
    return (
      this.#skipped.has(message) || this.#holders.get(message)?.seat.isReleased(message) === true
    );
  }

  #grantPending(): void {
    for (const seat of this.#seats) {
      if (this.#ungranted.length === 0) return;
      if (seat.seat.wanted <= seat.granted) continue;
      const message = this.#ungranted.shift() as number;
      this.#holders.set(message, seat);
      seat.grant({ message, redelivered: this.#redelivered.delete(message) });
      // The next message goes to the next consumer that wants one.
      this.#seats.delete(seat);
      this.#seats.add(seat);
    }
  }

  #redeliver(gone: ProducerSeat): void {
    const lost: number[] = [];
    for (const [message, holder] of this.#holders) {
      if (holder !== gone || gone.seat.isReleased(message)) continue;
      this.#holders.delete(message);
      this.#redelivered.add(message);
      lost.push(message);
    }
    this.#ungranted.unshift(...lost.sort((a, b) => a - b));
  }

  // ---- Consumers ----

  /**
   * Adds a consumer, which gets what is published from now on.
   *
   * @param name its process in words
   * @returns ends that, if its descriptors were not taken
   * @throws SystemError
   */
  addSeat(name = 'a consumer'): () => void {
    this.assertOpen();
    const seat = ProducerSeat.create(
      name,
      this.ring,
      this.#published,
      () => this.#onWake(),
      this.isAhead && this.#isRingTaken,
    );
    this.#isRingTaken = true;
    this.#seats.add(seat);
    this.#unsent.push(seat);
    return () => {
      const at = this.#unsent.indexOf(seat);
      if (at >= 0) this.#unsent.splice(at, 1)[0]?.discardFds();
    };
  }

  /**
   * The descriptors of the seat that was added first and not taken yet, with that of the ring. The
   * caller owns them: once no process has them, the consumer has ended.
   */
  takeSeatFds(): readonly number[] {
    const fds = (this.#unsent[0] as ProducerSeat).takeFds();
    this.#unsent.shift();
    return fds;
  }

  #onWake(): void {
    for (const seat of [...this.#seats]) {
      if (!seat.isGone) continue;
      this.#redeliver(seat);
      this.#seats.delete(seat);
      seat.close();
    }
    this.#grantPending();
    this.sleepers.wake();
  }

  // ---- The end ----

  async drained(wait: Wait): Promise<void> {
    await this.sleepers.wait(() => {
      this.assertOpen();
      return this.#isDrained;
    }, wait);
  }

  get #isDrained(): boolean {
    const first = Math.max(0, this.#acquired - this.ring.slots);
    for (let message = first; message < this.#published; message += 1)
      if (!this.#isFree(message)) return false;
    return true;
  }

  /** The work of a message failed: it will not come. */
  #fail(error: unknown): void {
    this.#failure ??= error;
    if (this.isAhead) this.ring.endWaits();
    for (const seat of this.#seats) seat.close();
    this.#seats.clear();
    this.sleepers.wake();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    // A slot that was acquired and not published is not a message.
    for (let message = this.#published; message < this.#acquired; message += 1) {
      const record = this.ring.record(message);
      const isPublished = message < this.#published || this.#waitingForEarlier.has(message);
      if (record && !isPublished) this.#skip(message, record);
    }
    this.ring.closeAt(this.#published);
    this.#wakeConsumers();
    this.memory.close();
    this.sleepers.wake();
    const isDelivered = (): boolean => {
      if (this.#failure === undefined && !this.#isDelivered) return false;
      releaseOrWarn(() => this.#release());
      return true;
    };
    if (!isDelivered()) pollInBackground(isDelivered);
  }

  /** Whether the consumers no longer need this process. */
  get #isDelivered(): boolean {
    const { context, ring } = this;
    const first = Math.max(0, this.#published - ring.slots);
    for (let message = first; message < this.#published; message += 1)
      if (!ring.isFilled(message)) return context.isLost;
    // A closed channel gets no more consumers: without one, nobody reads what is left.
    if (this.deliver === 'all' || this.#seats.size === 0) return true;
    this.#grantPending();
    for (const seat of this.#seats) this.#finish(seat);
    return this.#isDrained;
  }

  /** Tells a consumer if no message will come to it: the others have released all that they were granted. */
  #finish(seat: ProducerSeat): void {
    if (this.#ungranted.length > 0 || seat.seat.isFinished) return;
    for (const [message, holder] of this.#holders)
      if (holder !== seat && !holder.seat.isReleased(message)) return;
    seat.seat.finish();
    seat.wakeIfAsleep();
  }

  #release(): void {
    // All is stored, or never will be. A consumer whose host is blocked cannot end the waits itself.
    if (this.isAhead) this.ring.endWaits();
    for (const seat of this.#seats) {
      if (this.deliver === 'one') this.#finish(seat);
      seat.close();
    }
    this.#seats.clear();
    this.ring.words.close();
  }
}
