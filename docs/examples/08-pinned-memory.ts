/** Page-locked host memory: the device copies a typed array in it itself, without staging. */
import { DeviceBuffer, PinnedBuffer } from 'cuffi';

using buffer = DeviceBuffer.allocate(12);
const pinned = PinnedBuffer.allocate(2 * 12);
const up = new Float32Array(pinned.buffer, 0, 3);
const down = new Float32Array(pinned.buffer, 12, 3);

up.set([1, 2, 3]);
await buffer.copyFrom(up);
console.log(await buffer.copyToHost(down));

// The memory goes; a view that is kept reads zeros.
pinned.close();
console.log(`after close: ${down[0]}`);
