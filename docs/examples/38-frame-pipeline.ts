/** A producer of frames, three consumers that each see every frame, and their results back. */
import { DeviceBuffer, Stream, type uint8 } from 'cuffi';
import { Channel, type ChannelConsumer, parentPeer, spawnPeer } from 'cuffi/ipc';

const FRAMES = 20;
const SHAPE = [120, 160];

interface Result {
  readonly consumer: string;
  readonly frames: number;
  readonly sum: number;
}

if (process.argv[2] === undefined) {
  using frames = Channel.create({ slots: 4, shape: SHAPE, dtype: 'uint8', deliver: 'all' });
  using stream = Stream.create({ nonBlocking: true });
  const consumers = ['shows', 'stores', 'counts'].map((name) =>
    spawnPeer<Result>(import.meta.filename, { args: [name] }),
  );
  for (const consumer of consumers) await consumer.send({ frames });
  for (let frame = 0; frame < FRAMES; frame += 1) {
    // Waits until all three have released the slot.
    const slot = await frames.acquire({ timeoutMs: 10_000 });
    slot.array.fill(frame, { stream });
    slot.publish({ stream, meta: { frame, at: Date.now() } });
  }
  await frames.drained({ timeoutMs: 10_000 });
  frames.close();
  for (const consumer of consumers) {
    const { consumer: name, frames: count, sum } = await consumer.receive();
    console.log(`${name}: ${count} frames, first pixels add up to ${sum}`);
    consumer.close();
  }
} else {
  const producer = parentPeer<{ frames: ChannelConsumer<typeof uint8> }, Result>();
  using stream = Stream.create({ nonBlocking: true });
  const { frames } = await producer.receive();
  using first = DeviceBuffer.allocate(FRAMES);
  let count = 0;
  for await (const slot of frames) {
    // All that is done with a frame is only queued; the slot returns when it is done.
    slot.buffer.subarray(0, 1).copyTo(first.subarray(count, count + 1), { stream });
    slot.release({ stream });
    count += 1;
  }
  const pixels = await first.copyToHost(undefined, { stream });
  const sum = pixels.reduce((total, pixel) => total + pixel, 0);
  await producer.send({ consumer: process.argv[2], frames: count, sum });
  frames.close();
  producer.close();
}
