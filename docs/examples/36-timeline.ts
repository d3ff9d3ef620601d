/** Two processes take turns on one buffer: their streams wait for each other, and no host waits. */
import { DeviceBuffer, Stream } from 'cuffi';
import { parentPeer, spawnPeer, Timeline } from 'cuffi/ipc';

const ROUNDS = 5;

/** What the parent sends: its timeline, which the child waits for, and the buffer. */
interface Start {
  readonly buffer: DeviceBuffer;
  readonly produced: Timeline;
}

if (process.argv[2] === 'consumer') {
  const producer = parentPeer<Start, Timeline>();
  using stream = Stream.create({ nonBlocking: true });
  const { buffer, produced } = await producer.receive({ stream });
  using sums = DeviceBuffer.allocate(ROUNDS);
  using consumed = Timeline.create(); // this process signals it
  await producer.send(consumed);
  for (let round = 1; round <= ROUNDS; round++) {
    produced.wait(round, { stream }); // may be queued before the producer has begun
    buffer.subarray(0, 1).copyTo(sums.subarray(round - 1, round), { stream });
    consumed.signal(round, { stream });
  }
  await stream.synchronize();
  console.log('the consumer read', [...sums.copyToHostSync()]);
  buffer.close();
  await produced.reached(ROUNDS + 1); // the producer has seen the last signal
  produced.close();
  producer.close();
} else {
  using stream = Stream.create({ nonBlocking: true });
  using buffer = DeviceBuffer.allocate(1000);
  using produced = Timeline.create();
  using child = spawnPeer<Timeline, Start>(import.meta.filename, { args: ['consumer'] });
  await child.send({ buffer, produced }, { stream });
  using consumed = await child.receive();
  for (let round = 1; round <= ROUNDS; round++) {
    if (round > 1) consumed.wait(round - 1, { stream }); // the buffer is free again
    buffer.fill(10 * round, { stream });
    produced.signal(round, { stream });
  }
  // A host waits too, without blocking its event loop.
  await consumed.reached(ROUNDS, { timeoutMs: 10_000 });
  console.log('the producer is at', produced.value, 'and the consumer at', consumed.value);
  produced.signal(ROUNDS + 1, { stream });
  await child.ended;
}
