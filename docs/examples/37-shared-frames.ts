/** A process makes frames with its CPU; another one copies them to its GPU, without another copy. */
import { DeviceBuffer, PinnedBuffer, Stream } from 'cuffi';
import { parentPeer, spawnPeer, Timeline } from 'cuffi/ipc';

const FRAME = 1 << 16;
const FRAMES = 4;

/** What the parent sends once: two frames of page-locked memory, and a counter of those that are full. */
interface Ring {
  readonly frames: readonly [PinnedBuffer, PinnedBuffer];
  readonly filled: Timeline;
}

if (process.argv[2] === 'consumer') {
  const producer = parentPeer<Ring, Timeline>();
  const { frames, filled } = await producer.receive();
  using stream = Stream.create({ nonBlocking: true });
  using emptied = Timeline.create();
  using device = DeviceBuffer.allocate(FRAME);
  await producer.send(emptied);
  for (let frame = 1; frame <= FRAMES; frame++) {
    await filled.reached(frame); // by the producer's CPU
    await device.copyFrom(new Uint8Array(frames[frame % 2 ? 1 : 0].buffer), { stream });
    emptied.signal(frame, { stream });
    console.log('frame', frame, 'is full of', new Set(device.copyToHostSync()));
  }
  await filled.reached(FRAMES + 1);
  for (const each of [...frames, filled]) each.close();
  producer.close();
} else {
  const options = { shareable: true };
  using even = PinnedBuffer.allocate(FRAME, options);
  using odd = PinnedBuffer.allocate(FRAME, options);
  using filled = Timeline.create();
  using child = spawnPeer<Timeline, Ring>(import.meta.filename, { args: ['consumer'] });
  await child.send({ frames: [even, odd], filled });
  using emptied = await child.receive();
  for (let frame = 1; frame <= FRAMES + 1; frame++) {
    await emptied.reached(Math.max(0, frame - 2)); // the frame before the last one is free again
    new Uint8Array((frame % 2 ? odd : even).buffer).fill(frame);
    filled.signal(frame);
  }
  await child.ended;
}
