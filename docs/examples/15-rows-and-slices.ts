/** A tile of an image goes to the device, changes there, and comes back to its place. */
import { allocatePitched, copyPitched, fillPitched } from 'cuffi';

const image = { memory: new Uint8Array(8 * 6).fill(1), rowPitch: 8 };
const tile = { width: 4, height: 3 };

const { buffer, rowPitch } = allocatePitched(tile.width, tile.height);
using _owned = buffer;
const onDevice = { memory: buffer, rowPitch };

// From the third byte of the second row on.
const place = { ...image, byteOffset: 1 * 8 + 2 };
await copyPitched(onDevice, place, tile);
fillPitched({ ...onDevice, byteOffset: 1 }, 7, { width: 2, height: 2 });
await copyPitched(place, onDevice, tile);

for (let row = 0; row < 6; row += 1)
  console.log(image.memory.subarray(row * 8, row * 8 + 8).join(' '));
