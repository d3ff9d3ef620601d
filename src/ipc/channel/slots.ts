/** The slots of a channel, as both of its ends use them. */
import type { DeviceArray } from '../../array/device-array.ts';
import { fromBuffer } from '../../array/from-buffer.ts';
import type { Dtype } from '../../dtype.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import type { Stream } from '../../stream.ts';
import type { MessageLayout } from './message.ts';

/** The longest that an end polls before it sleeps: a second. */
export const MAX_BUSY_POLL_US = 1_000_000;

/** The most slots that a stream waits for at a time. */
export const MAX_AHEAD = 64;

/** @throws TypeError unless streams may wait for slots of the channel, and this stream can */
export function checkAheadStream(stream: Stream, isAhead: boolean): void {
  if (!isAhead)
    throw new TypeError(
      'streams can only wait for slots of a channel that was created with ahead: true',
    );
  if (!stream.nonBlocking)
    throw new TypeError(
      'the stream must be non-blocking, as of Stream.create({ nonBlocking: true }): while another one ' +
        'waits, the legacy default stream stands still',
    );
}

/** The arrays of the slots, in the layout of the channel; made at their first use. */
export class SlotViews {
  readonly #memory: DeviceBuffer;
  readonly #stride: number;
  readonly #byteLength: number;
  readonly #layout: MessageLayout;
  readonly #buffers: DeviceBuffer[] = [];
  readonly #arrays: DeviceArray[] = [];

  constructor(memory: DeviceBuffer, stride: number, byteLength: number, layout: MessageLayout) {
    this.#memory = memory;
    this.#stride = stride;
    this.#byteLength = byteLength;
    this.#layout = layout;
  }

  buffer(slot: number): DeviceBuffer {
    const known = this.#buffers[slot];
    if (known?.closed === false) return known;
    const begin = slot * this.#stride;
    const buffer = this.#memory.subarray(begin, begin + this.#byteLength);
    this.#buffers[slot] = buffer;
    return buffer;
  }

  array(slot: number, layout: MessageLayout = this.#layout): DeviceArray {
    const known = layout === this.#layout ? this.#arrays[slot] : undefined;
    if (known?.closed === false && !known.buffer.closed) return known;
    const array = fromBuffer(this.buffer(slot), layout.shape, layout.dtype as Dtype);
    if (layout === this.#layout) this.#arrays[slot] = array;
    return array;
  }
}
