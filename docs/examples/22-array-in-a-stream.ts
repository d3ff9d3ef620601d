/** An array whose work goes to a stream, filled from page-locked memory and read while it works. */
import { DeviceBuffer, float32, fromBuffer, pinnedArray, Stream, toDevice } from 'cuffi';

using stream = Stream.create({ nonBlocking: true });
using pinned = pinnedArray([1000, 1000], float32);
pinned.host.fill(1);

// Each call below is ordered in the stream of the array.
using image = await toDevice(pinned, { stream });
image.slice({ stop: 10 }).fill(2);
image.slice('...', { start: 990 }).fill(3);
const corner = await image.slice({ start: 8, stop: 12 }, { start: 988, stop: 992 }).copyToHost();
console.log(corner.join(' '));

// Memory that is there already, seen as an array: closing it frees nothing.
using buffer = DeviceBuffer.allocate(12);
const pair = fromBuffer(buffer, 2, float32, { byteOffset: 4 });
pair.fill(0.5);
console.log(await pair.copyToHost());
