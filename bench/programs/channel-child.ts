/**
 * Consumes the channels that it is sent. A channel that streams wait for is taken ahead, as many slots
 * as it is asked for, and it replies when they are queued. Of any other it releases each message. It
 * closes a channel when ordered to.
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
  /** Resolves at the end of a channel of which each message is released. */
  readonly released: Promise<void> | undefined;
}

const consumers: Consumer[] = [];

async function releaseAll(
  { channel, stream }: Pick<Consumer, 'channel' | 'stream'>,
  readsWord: boolean,
): Promise<void> {
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

/** Ends the use of a channel, whose memory would stay mapped here. */
async function drop(at: number): Promise<void> {
  const { channel, stream, work, released } = consumers[at] as Consumer;
  await released;
  channel.close();
  work?.close();
  stream.close();
}

await parent.send(null, { stream: idle });
for (;;) {
  const order = await parent.receive({ stream: idle });
  if ('channel' in order) {
    const { channel } = order;
    channel.busyPollUs = order.busyPollUs;
    const stream = Stream.create({ nonBlocking: true });
    consumers.push({
      channel,
      stream,
      work: order.workUs === 0 ? undefined : new Work(order.workUs),
      released: order.isAhead ? undefined : releaseAll({ channel, stream }, order.readsWord),
    });
  } else if ('drop' in order) await drop(order.drop);
  else await queueAhead(order.ahead, order.count);
  await parent.send(null, { stream: idle });
}
