import { inspect } from 'node:util';
import type { DeviceArray } from '../../array/device-array.ts';
import type { Shape } from '../../array/shape.ts';
import { UNCLONEABLE } from '../../conversions.ts';
import { beginWait, type Wait, type WaitOptions } from '../../deadline.ts';
import type { Device } from '../../device.ts';
import { diagnostics } from '../../diagnostics.ts';
import type { Dtype } from '../../dtype.ts';
import { CuffiError } from '../../errors.ts';
import { type Details, describeObject } from '../../inspect.ts';
import { Resource, stateKey } from '../../lifetime.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import { type Stream, type StreamOption, streamOf, streamOption } from '../../stream.ts';
import { assertInternal, checkInstance } from '../../validate.ts';
import { checkBusyPollUs } from '../wire/busy-poll.ts';
import { Consumer, type ConsumerInit, type Taken } from './consumer.ts';
import type { MessageLayout } from './message.ts';
import type { Delivery } from './producer.ts';
import { checkAheadStream, describeChannel } from './slots.ts';

/**
 * The end of a {@link Channel} in a process that it was sent to.
 *
 * A message is received when the work that fills its slot is done, so that it can be used in any
 * stream. Release each slot: the producer fills it again when all its consumers have.
 *
 * @example
 * using channel = (await peer.receive()) as ChannelConsumer<typeof cuda.float32>;
 * for await (const slot of channel) {
 *   kernel.launch([slot.array, result], { stream });
 *   slot.release({ stream });
 * }
 */
export class ChannelConsumer<out D extends Dtype = Dtype> extends Resource {
  /** @internal */
  readonly uncloneable = UNCLONEABLE;
  readonly #state: Consumer;

  /** @internal */
  constructor(init: ConsumerInit) {
    assertInternal(init, Object, 'ChannelConsumer', 'peer.receive');
    const state = new Consumer(init);
    super('ChannelConsumer', { owner: state.context.resources, release: () => state.close() });
    state.resource = this[stateKey];
    this.#state = state;
  }

  /** How many messages can be on their way. */
  get slots(): number {
    return this.#state.ring.slots;
  }

  /** The size of a slot in bytes. */
  get byteLength(): number {
    return this.#state.byteLength;
  }

  get shape(): Shape {
    return this.#state.layout.shape;
  }

  get dtype(): D {
    return this.#state.layout.dtype as D;
  }

  get deliver(): Delivery {
    return this.#state.deliver;
  }

  get device(): Device {
    return this.#state.context.device;
  }

  /** For how many microseconds a wait at this end polls before it sleeps. */
  get busyPollUs(): number {
    return this.#state.sleepers.busyPollUs;
  }

  set busyPollUs(durationUs: number) {
    this.#state.sleepers.busyPollUs = checkBusyPollUs(durationUs);
  }

  /**
   * Waits for the next message; undefined when the producer has closed the channel and all messages
   * were received.
   *
   * @throws PeerGoneError if the producer ended without closing it, after what was complete; IpcError
   * for an invalid message; ClosedError
   */
  async receive(options?: WaitOptions): Promise<ConsumerSlot<D> | undefined> {
    const wait = beginWait(options, 'waiting for a message of a channel', this.#state.messageHint);
    this.assertOpen();
    return this.#receive(wait);
  }

  /** Receives the messages one after the other, until the channel ends. As {@link receive}. */
  async *[Symbol.asyncIterator](): AsyncGenerator<ConsumerSlot<D>, void, undefined> {
    yield* this.messages();
  }

  /** The messages, with limits for each of them. As {@link receive}. */
  async *messages(options?: WaitOptions): AsyncGenerator<ConsumerSlot<D>, void, undefined> {
    for (;;) {
      const slot = await this.receive(options);
      if (!slot) return;
      yield slot;
    }
  }

  /**
   * Hands out slots in order before they are filled. The stream waits for each of them, not the
   * caller: queue the work that reads it in this stream. At most 64 slots are ahead at a time, and as
   * many as the limits of waiting streams allow.
   *
   * The iteration ends when the producer has closed the channel. Slots that were handed out by then
   * and not published hold nothing: {@link ConsumerSlot.filled} tells.
   *
   * @throws TypeError for a channel without `ahead`, or a stream that is not non-blocking; CuffiError
   * if a slot is needed again that was not released; PeerGoneError, ClosedError
   */
  async *ahead(
    stream: Stream,
    options?: WaitOptions,
  ): AsyncGenerator<ConsumerSlot<D>, void, undefined> {
    const checked = checkInstance(streamOf(stream) as object, Object, 'stream') as Stream;
    checkAheadStream(checked, this.#state.isAhead);
    for (;;) {
      const wait = beginWait(options, 'waiting for room ahead in a channel', this.#state.aheadHint);
      this.assertOpen();
      const message = await this.#state.takeAhead(checked, wait);
      if (message === undefined) return;
      yield new ConsumerSlot<D>(this, this.#state, { message, record: {}, redelivered: false });
    }
  }

  /**
   * Lets another device access the slots, over the link to the producer's device: its kernels and copies
   * then use them where they are. {@link Device.topology} says what the link is.
   *
   * @throws NotSupportedError if that device cannot access the producer's; RangeError for the producer's
   * own; ClosedError, CudaError
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html
   */
  allowAccess(device: Device | number): void {
    this.assertOpen();
    this.#state.allowAccess(device);
  }

  /** What it has done. */
  stats(): ConsumerStats {
    const { received, released } = this.#state;
    return { received, released, slots: this.slots };
  }

  /** @internal */
  protected override describe(): Details {
    return describeChannel(this.#state);
  }

  async #receive(wait: Wait): Promise<ConsumerSlot<D> | undefined> {
    const taken = await this.#state.take(wait);
    return taken && new ConsumerSlot<D>(this, this.#state, taken);
  }
}

/** The result of `channel.stats()` of a consumer. */
export interface ConsumerStats {
  /** How many messages it has received, and released. */
  readonly received: number;
  readonly released: number;
  readonly slots: number;
}

/** A message. Release it when the work that uses it is queued. */
export class ConsumerSlot<out D extends Dtype = Dtype> {
  /** @internal */
  readonly uncloneable = UNCLONEABLE;
  /** A slot keeps its channel from being garbage collected. */
  readonly #channel: ChannelConsumer<D>;
  readonly #consumer: Consumer;
  readonly #layout: MessageLayout;
  /** The number of the message, from 0. */
  readonly message: number;
  /** What the producer has published with it; undefined if nothing. */
  readonly meta: unknown;
  /** Whether another consumer had the message before, and ended without releasing it. */
  readonly redelivered: boolean;
  #isReleased = false;

  /** @internal */
  constructor(channel: ChannelConsumer<D>, consumer: Consumer, taken: Taken) {
    assertInternal(consumer, Consumer, 'ConsumerSlot', 'channel.receive');
    const { message, record, redelivered } = taken;
    this.#channel = channel;
    this.#consumer = consumer;
    this.#layout = record.layout ?? consumer.layout;
    this.message = message;
    this.meta = record.meta;
    this.redelivered = redelivered;
    consumer.received += 1;
    if (diagnostics.channelReceive.isOn) diagnostics.channelReceive.publish(this.#diagnostic);
  }

  get #diagnostic(): { channel: object; message: number; byteLength: number } {
    return { channel: this.#channel, message: this.message, byteLength: this.#consumer.byteLength };
  }

  /** The memory as an array, in the layout of the message. @throws CuffiError after {@link release} */
  get array(): DeviceArray<D> {
    this.#assertUsable();
    return this.#consumer.views.array(this.message, this.#layout) as DeviceArray<D>;
  }

  /** All bytes of the slot. @throws CuffiError after {@link release} */
  get buffer(): DeviceBuffer {
    this.#assertUsable();
    return this.#consumer.views.buffer(this.message);
  }

  /**
   * Resolves when the work that fills the slot is done: at once, unless it came from
   * {@link ChannelConsumer.ahead}.
   *
   * @returns false if the producer closed the channel before it published this message
   * @throws PeerGoneError if the producer ended before
   */
  async filled(options?: WaitOptions): Promise<boolean> {
    const { message } = this;
    const hintOf = options && (() => this.#consumer.filledHint(message));
    const wait = beginWait(options, `waiting for message ${message} of a channel`, hintOf);
    // Awaited here: the wait then holds the slot, and so the channel.
    return await this.#consumer.filled(message, wait);
  }

  /**
   * Gives the slot back when the work that is queued in a stream so far is done. Returns at once. The
   * second call does nothing.
   *
   * @throws CudaError, ClosedError
   */
  release(options?: StreamOption): void {
    const stream = streamOption(options, 'slot.release');
    if (this.#isReleased) return;
    this.#consumer.release(this.message, stream);
    this.#isReleased = true;
    this.#consumer.released += 1;
    if (diagnostics.channelRelease.isOn) diagnostics.channelRelease.publish(this.#diagnostic);
  }

  [inspect.custom](): string {
    return describeObject('ConsumerSlot', () => [
      `message ${this.message}`,
      this.#isReleased && 'released',
    ]);
  }

  #assertUsable(): void {
    if (this.#isReleased) throw new CuffiError('this slot was released already');
    this.#channel.assertOpen();
  }
}
