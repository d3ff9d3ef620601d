import { inspect } from 'node:util';
import type { DeviceArray } from '../../array/device-array.ts';
import { type Shape, sizeOf } from '../../array/shape.ts';
import type { PlaceOptions } from '../../context.ts';
import { UNCLONEABLE } from '../../conversions.ts';
import { beginWait, type WaitOptions } from '../../deadline.ts';
import type { Device } from '../../device.ts';
import { diagnostics } from '../../diagnostics.ts';
import {
  type AnyDtypeName,
  type Dtype,
  type DtypeOrName,
  type NamedDtype,
  uint8,
} from '../../dtype.ts';
import { CuffiError } from '../../errors.ts';
import { type Details, describeObject } from '../../inspect.ts';
import { Resource, stateKey } from '../../lifetime.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import type { VirtualMemory } from '../../memory/virtual.ts';
import { type Stream, type StreamOption, streamOf, streamOption } from '../../stream.ts';
import {
  assertInternal,
  checkBoolean,
  checkInteger,
  checkOptions,
  formatValue,
} from '../../validate.ts';
import { MAX_SLOTS } from '../protocol.ts';
import { checkBusyPollUs } from '../wire/busy-poll.ts';
import { checkLayout, type MessageLayout } from './message.ts';
import { type Delivery, Producer } from './producer.ts';
import { checkAheadStream, describeChannel } from './slots.ts';

/** Options of {@link Channel.create}. */
export interface ChannelOptions extends PlaceOptions {
  /** How many messages can be on their way: from 1 to 1024. */
  readonly slots: number;
  /** The shape of the array of a slot. Either this or `byteLength` is given. */
  readonly shape?: number | Shape;
  /** The dtype of that array. Default float64, as for new arrays; uint8 with `byteLength`. */
  readonly dtype?: DtypeOrName;
  /** The size of a slot in bytes. */
  readonly byteLength?: number;
  readonly deliver: Delivery;
  /**
   * Whether streams may wait for slots: {@link Channel.acquire} with a stream, and
   * {@link ChannelConsumer.ahead}. Only with `deliver: 'all'`. Messages then have no `meta` and no
   * layout of their own. Default false.
   */
  readonly ahead?: boolean;
  /** Whether consumers can only read the slots. Default false. */
  readonly readOnly?: boolean;
  /** For how many microseconds a wait at this end polls before it sleeps. Default 0. */
  readonly busyPollUs?: number;
}

/** Options of {@link Channel.acquire}. */
export interface AcquireOptions extends WaitOptions {
  /**
   * Makes this stream wait until the consumers have released the slot, instead of the caller. It must
   * be non-blocking. Only for a channel with `ahead`.
   */
  readonly stream?: Stream;
}

/** Options of {@link ProducerSlot.publish}. */
export interface PublishOptions {
  /** The stream with the work that fills the slot. Default: the legacy default stream. */
  readonly stream?: Stream;
  /** Any value that JSON can hold, of at most 1 KiB as JSON. */
  readonly meta?: unknown;
  /** The shape of this message, if it differs from that of the channel. */
  readonly shape?: number | Shape;
  /** The dtype of this message, if it differs from that of the channel. */
  readonly dtype?: DtypeOrName;
}

/**
 * A ring of slots in device memory that one process fills and others read, without copying. The
 * consumers map the slots once; then each message costs a few stores in shared memory.
 *
 * It is sent with `peer.send`, and arrives as a {@link ChannelConsumer}. `deliver: 'all'` gives each
 * consumer each message that is published after the channel was sent to it. `deliver: 'one'` gives each
 * message to one consumer; if that ends before it has released the slot, to another.
 *
 * The shared memory of the ring can be written by every consumer: send a channel only to processes that
 * you trust. What a killed process held comes back.
 *
 * @example
 * using channel = Channel.create({ slots: 4, shape: [480, 640], dtype: 'float32', deliver: 'all' });
 * await peer.send(channel);
 * const slot = await channel.acquire();
 * slot.array.fill(1, { stream });
 * slot.publish({ stream, meta: { frame: 1 } });
 */
export class Channel<out D extends Dtype = Dtype> extends Resource {
  /** @internal */
  readonly uncloneable = UNCLONEABLE;
  readonly #producer: Producer;

  private constructor(producer: Producer) {
    assertInternal(producer, Producer, 'Channel', 'Channel.create');
    super('Channel', { owner: producer.context.resources, release: () => producer.close() });
    producer.resource = this[stateKey];
    this.#producer = producer;
  }

  /**
   * Creates a channel, whose producer is this process.
   *
   * @throws TypeError, RangeError for invalid options; NotSupportedError if the device has no virtual
   * memory that processes can share; CudaError, SystemError
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html
   */
  static create<D extends Dtype>(options: ChannelOptions & { readonly dtype: D }): Channel<D>;
  static create<N extends AnyDtypeName>(
    options: ChannelOptions & { readonly dtype: N },
  ): Channel<NamedDtype<N>>;
  static create(options: ChannelOptions): Channel;
  static create(options: ChannelOptions): Channel {
    return new Channel(createProducer(options));
  }

  /** How many messages can be on their way. */
  get slots(): number {
    return this.#producer.ring.slots;
  }

  /** The size of a slot in bytes. */
  get byteLength(): number {
    return this.#producer.byteLength;
  }

  get shape(): Shape {
    return this.#producer.layout.shape;
  }

  get dtype(): D {
    return this.#producer.layout.dtype as D;
  }

  get deliver(): Delivery {
    return this.#producer.deliver;
  }

  get device(): Device {
    return this.#producer.context.device;
  }

  /** How many processes consume it now: those that it was sent to and that have not ended it. */
  get consumers(): number {
    return this.#producer.consumers;
  }

  /**
   * Lets another device access the slots, over the link to the channel's device: its kernels and copies
   * then fill them where they are. Consumers allow access in their own process.
   *
   * @throws NotSupportedError if that device cannot access the channel's; RangeError for the channel's
   * own; ClosedError, CudaError
   * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html
   */
  allowAccess(device: Device | number): void {
    this.assertOpen();
    this.#producer.memory.allowAccess(device);
  }

  /** How many messages were published. */
  get published(): number {
    return this.#producer.published;
  }

  /** What it has done, and how many slots are in use. */
  stats(): ChannelStats {
    this.assertOpen();
    const { published, consumers } = this.#producer;
    return { published, consumers, slots: this.slots, inUse: this.#producer.inUse };
  }

  /** For how many microseconds a wait at this end polls before it sleeps. */
  get busyPollUs(): number {
    return this.#producer.sleepers.busyPollUs;
  }

  set busyPollUs(durationUs: number) {
    this.#producer.sleepers.busyPollUs = checkBusyPollUs(durationUs);
  }

  /**
   * Waits for a free slot. With `deliver: 'all'`, a slot is free when all consumers have released what
   * was in it; with none, when the work that filled it is done. Slots are published in the order in
   * which they were acquired.
   *
   * @throws CuffiError if a stream is named and the slot was not published yet; ClosedError
   */
  async acquire(options: AcquireOptions = {}): Promise<ProducerSlot<D>> {
    const { stream, ...limits } = checkOptions(
      options,
      ['stream', 'signal', 'timeoutMs'],
      'channel.acquire',
    );
    const wait = beginWait(limits, 'waiting for a free slot', this.#producer.slotHint);
    this.assertOpen();
    const chosen = streamOf(stream);
    if (chosen) checkAheadStream(chosen, this.#producer.isAhead);
    wait.signal?.throwIfAborted();
    return new ProducerSlot<D>(this, this.#producer, await this.#producer.acquire(chosen, wait));
  }

  /**
   * As {@link acquire}, without waiting: undefined if there is no free slot, or, with a stream, if no
   * more may be queued there now, or a consumer has not received the channel yet.
   */
  tryAcquire(options?: StreamOption): ProducerSlot<D> | undefined {
    const stream = streamOption(options, 'channel.tryAcquire');
    this.assertOpen();
    if (stream) checkAheadStream(stream, this.#producer.isAhead);
    const message = this.#producer.tryAcquire(stream);
    return message === undefined ? undefined : new ProducerSlot<D>(this, this.#producer, message);
  }

  /**
   * Resolves when all published messages were released by their consumers, or their consumers have
   * ended. With `deliver: 'one'`, messages that nobody has taken are waited for.
   *
   * @throws ClosedError if the channel is closed meanwhile; what was published still arrives
   */
  async drained(options?: WaitOptions): Promise<void> {
    this.assertOpen();
    const producer = this.#producer;
    await producer.drained(
      beginWait(options, 'waiting for the consumers of a channel', producer.drainHint),
    );
  }

  /** @internal */
  get memory(): VirtualMemory {
    return this.#producer.memory;
  }

  /** @internal What the table of kinds exports. */
  get exported(): Producer {
    this.assertOpen();
    return this.#producer;
  }

  /** @internal */
  protected override describe(): Details {
    return describeChannel(this.#producer);
  }
}

/** The result of `channel.stats()`. */
export interface ChannelStats {
  /** How many messages were published. */
  readonly published: number;
  readonly consumers: number;
  readonly slots: number;
  /** How many slots are acquired, published and not released, or being filled by the GPU. */
  readonly inUse: number;
}

/** A slot that this process fills: publish it, or cancel it. */
export class ProducerSlot<out D extends Dtype = Dtype> implements Disposable {
  /** @internal */
  readonly uncloneable = UNCLONEABLE;
  /** A slot keeps its channel from being garbage collected. */
  readonly #channel: Channel<D>;
  readonly #producer: Producer;
  /** The number of the message, from 0. */
  readonly message: number;
  #isSettled = false;

  /** @internal */
  constructor(channel: Channel<D>, producer: Producer, message: number) {
    assertInternal(producer, Producer, 'ProducerSlot', 'channel.acquire');
    this.#channel = channel;
    this.#producer = producer;
    this.message = message;
  }

  /** The memory as an array of the channel's shape and dtype. @throws CuffiError after it was published */
  get array(): DeviceArray<D> {
    this.#assertUsable();
    return this.#producer.views.array(this.message) as DeviceArray<D>;
  }

  /** All bytes of the slot. @throws CuffiError after it was published */
  get buffer(): DeviceBuffer {
    this.#assertUsable();
    return this.#producer.views.buffer(this.message);
  }

  /**
   * Publishes the message: consumers get it when the work that is queued in a stream so far is done.
   * Returns at once. The process stays alive until the work is done.
   *
   * @throws TypeError, RangeError for invalid `meta` or a layout that does not fit, or for either in a
   * channel with `ahead`; CuffiError if it was published or canceled, ClosedError, CudaError; the slot
   * can then be published again
   */
  publish(options: PublishOptions = {}): void {
    const { stream, meta, shape, dtype } = checkOptions(
      options,
      ['stream', 'meta', 'shape', 'dtype'],
      'slot.publish',
    );
    this.#assertUsable();
    this.#producer.publish(this.message, streamOf(stream), meta, shape, dtype);
    this.#isSettled = true;
    if (diagnostics.channelPublish.isOn)
      diagnostics.channelPublish.publish({
        channel: this.#channel,
        message: this.message,
        byteLength: this.#producer.byteLength,
      });
  }

  /**
   * Gives the slot back without a message. The second call does nothing, nor does one after
   * {@link publish}.
   *
   * @throws CuffiError in a channel with `ahead`, unless it is the last slot that was acquired
   */
  cancel(): void {
    if (this.#isSettled) return;
    this.#producer.cancel(this.message);
    this.#isSettled = true;
  }

  [Symbol.dispose](): void {
    this.cancel();
  }

  [inspect.custom](): string {
    return describeObject('ProducerSlot', () => [
      `message ${this.message}`,
      this.#isSettled && 'published or canceled',
    ]);
  }

  #assertUsable(): void {
    if (this.#isSettled) throw new CuffiError('this slot was published or canceled already');
    this.#channel.assertOpen();
    this.#producer.assertOpen();
  }
}

// ---- How a channel is made ----

/** @throws TypeError, RangeError for invalid options, and as {@link Producer.create} */
function createProducer(options: ChannelOptions): Producer {
  const { slots, shape, dtype, byteLength, deliver, ahead, readOnly, busyPollUs, ...place } =
    checkOptions(
      options,
      [
        'slots',
        'shape',
        'dtype',
        'byteLength',
        'deliver',
        'ahead',
        'readOnly',
        'busyPollUs',
        'context',
        'device',
      ],
      'Channel.create',
    );
  const count = checkInteger(slots, 'slots', 1, MAX_SLOTS);
  if (deliver !== 'all' && deliver !== 'one')
    throw new TypeError(`deliver must be 'all' or 'one', not ${formatValue(deliver)}`);
  const isAhead = checkBoolean(ahead, 'ahead', false);
  if (isAhead && deliver === 'one')
    throw new TypeError(
      "ahead needs deliver: 'all': with 'one', the consumer of a message is chosen later",
    );
  const isReadOnly = checkBoolean(readOnly, 'readOnly', false);
  const duration = checkBusyPollUs(busyPollUs ?? 0);
  const layout = slotLayout(shape, dtype, byteLength);
  const producer = Producer.create({
    slots: count,
    layout,
    byteLength: byteLength ?? sizeOf(layout.shape) * layout.dtype.itemsize,
    deliver,
    isAhead,
    isReadOnly,
    place,
  });
  producer.sleepers.busyPollUs = duration;
  return producer;
}

function slotLayout(
  shape: number | Shape | undefined,
  dtype: DtypeOrName | undefined,
  byteLength: number | undefined,
): MessageLayout {
  if ((shape === undefined) === (byteLength === undefined))
    throw new TypeError('give either a shape or a byteLength');
  if (byteLength === undefined)
    return checkLayout(
      { shape: shape as Shape, dtype: dtype ?? 'float64' },
      Number.MAX_SAFE_INTEGER,
    );
  checkInteger(byteLength, 'byteLength', 1);
  if (dtype !== undefined) throw new TypeError('a dtype needs a shape, not a byteLength');
  return { shape: Object.freeze([byteLength]), dtype: uint8 };
}
