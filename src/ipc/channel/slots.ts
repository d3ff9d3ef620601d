/** The slots of a channel, as both of its ends use them. */
import type { DeviceArray } from '../../array/device-array.ts';
import { fromBuffer } from '../../array/from-buffer.ts';
import type { Wait } from '../../deadline.ts';
import type { Dtype } from '../../dtype.ts';
import type { Details } from '../../inspect.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import { pollUntil } from '../../poller.ts';
import type { Stream } from '../../stream.ts';
import type { MessageLayout } from './message.ts';

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
      'the stream must be non-blocking: while a blocking one waits, the legacy default stream stands ' +
        'still. Create it with Stream.create({ nonBlocking: true })',
    );
}

/** Whether a stream can take the work of one more slot, or should first do some of what it has. */
export const hasRoomAhead = ({ context, queryHandle: handle }: Stream): boolean =>
  context.workCounters.hasRoomAhead(handle);

/** Resolves when a stream has room. Rejects with what `assertOpen` throws meanwhile. */
export async function waitForRoomAhead(
  stream: Stream,
  assertOpen: () => void,
  wait: Wait,
): Promise<void> {
  // The other end wakes nobody when the stream goes on, so this is polled.
  await pollUntil(() => {
    assertOpen();
    return hasRoomAhead(stream);
  }, wait);
}

/** How an end of a channel prints itself. */
export const describeChannel = ({
  layout,
  ring,
  deliver,
}: {
  readonly layout: MessageLayout;
  readonly ring: { readonly slots: number };
  readonly deliver: string;
}): Details => [
  `${ring.slots} slots of ${layout.dtype.name} [${layout.shape.join(', ')}]`,
  `to ${deliver}`,
];

/** How the slots lie in the memory of a channel. */
export interface SlotPlan {
  readonly slots: number;
  /** From the beginning of a slot to that of the next, in bytes. */
  readonly stride: number;
  /** The size of a slot. */
  readonly byteLength: number;
  /** The layout of messages that have none of their own. */
  readonly layout: MessageLayout;
}

/** The slots of messages as buffers and arrays, which are made at their first use. */
export class SlotViews {
  readonly #memory: DeviceBuffer;
  readonly #plan: SlotPlan;
  readonly #buffers: DeviceBuffer[] = [];
  readonly #arrays: DeviceArray[] = [];

  constructor(memory: DeviceBuffer, plan: SlotPlan) {
    this.#memory = memory;
    this.#plan = plan;
  }

  /** All bytes of the slot of a message. */
  buffer(message: number): DeviceBuffer {
    const { slots, stride, byteLength } = this.#plan;
    const slot = message % slots;
    const known = this.#buffers[slot];
    if (known?.closed === false) return known;
    const buffer = this.#memory.subarray(slot * stride, slot * stride + byteLength);
    this.#buffers[slot] = buffer;
    return buffer;
  }

  /** The slot of a message in a layout, by default in that of the channel. */
  array(message: number, layout: MessageLayout = this.#plan.layout): DeviceArray {
    const isOwn = layout === this.#plan.layout;
    const slot = message % this.#plan.slots;
    const known = isOwn ? this.#arrays[slot] : undefined;
    if (known?.closed === false && !known.buffer.closed) return known;
    const array = fromBuffer(this.buffer(message), layout.shape, layout.dtype as Dtype);
    if (isOwn) this.#arrays[slot] = array;
    return array;
  }
}
