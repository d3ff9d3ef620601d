/** Channels when they are compiled: the dtype of a slot, and what may be sent. */
import { expectTypeOf } from 'expect-type';
import { type DeviceArray, type float32, type Stream, uint8 } from '../../src/index.ts';
import {
  Channel,
  type ChannelConsumer,
  type ConsumerSlot,
  type Peer,
  type ProducerSlot,
  parentPeer,
} from '../../src/ipc/index.ts';

declare const peer: Peer;
declare const stream: Stream;

const bytes = Channel.create({ slots: 2, shape: 4, dtype: uint8, deliver: 'all' });
const floats = Channel.create({ slots: 2, shape: [4, 4], dtype: 'float32', deliver: 'one' });
expectTypeOf(bytes).toEqualTypeOf<Channel<typeof uint8>>();
expectTypeOf(floats).toEqualTypeOf<Channel<typeof float32>>();
expectTypeOf((await bytes.acquire()).array).toEqualTypeOf<DeviceArray<typeof uint8>>();
expectTypeOf(floats.tryAcquire({ stream })).toEqualTypeOf<
  ProducerSlot<typeof float32> | undefined
>();
(await floats.acquire({ stream, timeoutMs: 5 })).publish({ stream, meta: { a: 1 }, shape: [2] });

void peer.send(bytes);
void peer.send({ channels: [bytes, floats] });
declare const typed: Peer<string, { readonly frames: Channel<typeof float32> }>;
void typed.send({ frames: floats });
// @ts-expect-error -- another dtype
void typed.send({ frames: bytes });

const parent = parentPeer<{ readonly frames: ChannelConsumer<typeof float32> }, string>();
const { frames } = await parent.receive();
for await (const slot of frames) {
  expectTypeOf(slot).toEqualTypeOf<ConsumerSlot<typeof float32>>();
  expectTypeOf(slot.array).toEqualTypeOf<DeviceArray<typeof float32>>();
  expectTypeOf(slot.meta).toEqualTypeOf<unknown>();
  slot.release({ stream });
  // @ts-expect-error -- a consumer publishes nothing
  slot.publish();
  // @ts-expect-error -- a slot cannot be sent
  void peer.send(slot);
}
for await (const slot of frames.ahead(stream, { timeoutMs: 5 }))
  expectTypeOf(slot).toEqualTypeOf<ConsumerSlot<typeof float32>>();
// @ts-expect-error -- a consumer cannot be sent
void peer.send(frames);
// @ts-expect-error -- it must be said whom messages go to
Channel.create({ slots: 2, shape: 4 });
// @ts-expect-error -- an unknown way of delivery
Channel.create({ slots: 2, shape: 4, deliver: 'some' });
