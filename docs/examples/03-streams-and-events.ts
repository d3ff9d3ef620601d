/** Work in order, waited for without blocking, and the time that it took. */
import { CudaEvent, DeviceBuffer, Stream } from 'cuffi';

using stream = Stream.create({ nonBlocking: true });
using start = CudaEvent.create();
using end = CudaEvent.create();
using buffer = DeviceBuffer.allocate(1 << 20);

start.record(stream);
for (let value = 0; value < 100; value += 1) buffer.fill(value, { stream });
end.record(stream);

let turns = 0;
const turning = setInterval(() => {
  turns += 1;
}, 0);
await end.synchronize();
clearInterval(turning);

console.log(`the event loop turned ${turns} times meanwhile`);
console.log(`done: ${stream.done}, the last value: ${(await buffer.copyToHost())[0]}`);
console.log(`took a time: ${CudaEvent.elapsedMs(start, end) >= 0}`);
