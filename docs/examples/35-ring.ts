/** A ring of frames: a producer fills a buffer again as soon as its consumer has returned it. */
import { DeviceBuffer, Stream } from 'cuffi';
import { leases, parentPeer, spawnPeer } from 'cuffi/ipc';

const FRAMES = 10;

if (process.argv[2] === 'consumer') {
  const producer = parentPeer();
  using own = DeviceBuffer.allocate(1000);
  let sum = 0;
  for (let count = 0; count < FRAMES; count += 1) {
    using frame = (await producer.receive()) as DeviceBuffer;
    frame.copyTo(own);
    sum += (await own.copyToHost())[0] ?? 0;
  } // closed here: this returns the frame
  await producer.send(sum);
} else {
  using stream = Stream.create({ nonBlocking: true });
  const ring = Array.from({ length: 3 }, () => DeviceBuffer.allocate(1000));
  await using consumer = spawnPeer(import.meta.filename, { args: ['consumer'] });
  let filled = 0;
  for (let frame = 0; frame < FRAMES; frame += 1) {
    const buffer = ring[frame % ring.length] as DeviceBuffer;
    await leases.returned(buffer, { timeoutMs: 10_000 });
    buffer.fill(frame, { stream });
    stream.onDone((error) => {
      if (!error) filled += 1;
    });
    await consumer.send(buffer, { stream });
  }
  console.log('the consumer read', await consumer.receive());
  console.log('frames filled:', filled);
  for (const buffer of ring) buffer.close();
}
