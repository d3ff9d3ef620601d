/** Python fills frames on the GPU; this process uses them where they are. */
import { Stream } from 'cuffi';
import { type ChannelConsumer, spawnPython } from 'cuffi/ipc';

using camera = spawnPython<{ frames: ChannelConsumer }>(
  new URL('./41-python-frames.py', import.meta.url),
);
using stream = Stream.create({ nonBlocking: true });

const { frames } = await camera.receive();
console.log(`${frames.slots} slots of ${frames.dtype.name} [${frames.shape}]`);
for await (const slot of frames) {
  // The frame is filled. Any stream, kernel or graph of this process can use it in place.
  const pixels = await slot.array.copyToHost(undefined, { stream });
  console.log('frame', slot.message, slot.meta, 'begins with', pixels.slice(0, 3));
  slot.release({ stream }); // Python may fill it again when the work of this stream is done
}
frames.close();
console.log('the camera has closed the channel');
