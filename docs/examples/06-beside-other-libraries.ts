/** Contexts, streams and memory of other libraries in the same process, borrowed. */
import { Context, DeviceBuffer, Stream } from 'cuffi';

const context = Context.primary();
// cuffi leaves no context current; what needs one runs here.
context.run(() => console.log('current inside:', Context.current() === context));
console.log('current outside:', Context.current());

// Stand-ins for what another library would hand over: a stream and a pointer.
using theirStream = Stream.create({ context });
using theirMemory = DeviceBuffer.allocate(64, { context });

const stream = Stream.fromHandle(theirStream.handle);
const buffer = DeviceBuffer.fromPointer(theirMemory.address, 64, { owner: theirMemory });
buffer.fill(9, { stream });
await stream.synchronize();
buffer.close(); // forgets it: the memory is theirs
console.log('theirs still holds', new Set(await theirMemory.copyToHost()));
console.log('stack limit is a number:', context.limit('stackSize') > 0);
