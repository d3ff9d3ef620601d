/**
 * Consumes the channels that it is sent. A channel that streams wait for is taken ahead, as many slots
 * as it is asked for, and it replies when they are queued. Of any other it releases each message.
 */
import { Stream } from 'cuffi';
import { type ChannelConsumer, parentPeer } from 'cuffi/ipc';
import type { ReceivedChannelOrder } from '../ways/children.ts';
import { Work } from '../ways/work.ts';

const parent = parentPeer<ReceivedChannelOrder, null>();
const idle = Stream.create({ nonBlocking: true });
interface Consumer {
  readonly channel: ChannelConsumer;
  readonly stream: Stream;
  readonly work: Work | undefined;
}

const consumers: Consumer[] = [];

async function releaseAll({ channel, stream }: Consumer, readsWord: boolean): Promise<void> {
  for await (const slot of channel) {
    if (readsWord) await slot.buffer.subarray(0, 4).copyToHost(undefined, { stream });
    slot.release({ stream });
  }
}

async function queueAhead(at: number, count: number): Promise<void> {
  const { channel, stream, work } = consumers[at] as Consumer;
  let left = count;
  for await (const slot of channel.ahead(stream)) {
    work?.queue(stream);
    slot.release({ stream });
    left -= 1;
    if (left === 0) return;
  }
}

await parent.send(null, { stream: idle });
for (;;) {
  const order = await parent.receive({ stream: idle });
  if ('channel' in order) {
    const consumer = {
      channel: order.channel,
      stream: Stream.create({ nonBlocking: true }),
      work: order.workUs === 0 ? undefined : new Work(order.workUs),
    };
    consumer.channel.busyPollUs = order.busyPollUs;
    consumers.push(consumer);
    if (!order.isAhead) void releaseAll(consumer, order.readsWord);
  } else await queueAhead(order.ahead, order.count);
  await parent.send(null, { stream: idle });
}
