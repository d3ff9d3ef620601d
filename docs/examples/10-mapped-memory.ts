/** Host memory that the device reaches: nothing is copied. */
import { MappedMemory } from 'cuffi';

using buffer = MappedMemory.create().allocate(4096);
const bytes = new Uint8Array(buffer.buffer);

buffer.fill(7);
await buffer.context.synchronize();
console.log(`the CPU reads ${bytes[0]}`);

bytes.fill(8);
const [first] = await buffer.copyToHost();
console.log(`the device reads ${first}`);
