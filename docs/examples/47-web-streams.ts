/** A channel as streams of the web: frames are written with back-pressure, and read in another process. */
import { ReadableStream, WritableStream } from 'node:stream/web';
import type { float32 } from 'cuffi';
import { Channel, type ChannelConsumer, parentPeer, spawnPeer } from 'cuffi/ipc';

if (process.argv[2] === 'reader') {
  const parent = parentPeer<ChannelConsumer<typeof float32>, number[]>();
  using channel = await parent.receive();
  const firsts: number[] = [];
  // The producer waits while all slots are in use: that is the back-pressure.
  for await (const slot of ReadableStream.from(channel)) {
    firsts.push(Number((await slot.array.copyToHost())[0]));
    slot.release();
  }
  await parent.send(firsts);
} else {
  await using reader = spawnPeer<number[]>(import.meta.filename, { args: ['reader'] });
  using channel = Channel.create({ slots: 2, shape: 1024, dtype: 'float32', deliver: 'all' });
  await reader.send(channel);

  const frames = new WritableStream<Float32Array<ArrayBuffer>>({
    async write(frame) {
      const slot = await channel.acquire();
      await slot.array.copyFrom(frame);
      slot.publish();
    },
    async close() {
      await channel.drained();
      channel.close();
    },
  });
  const source = ReadableStream.from([1, 2, 3, 4, 5].map((n) => new Float32Array(1024).fill(n)));
  await source.pipeTo(frames);
  console.log('read there:', ...(await reader.receive())); // 1 2 3 4 5
}
