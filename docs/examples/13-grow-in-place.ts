/** Virtual memory: addresses first, memory behind them as it is needed. */
import { VirtualMemory } from 'cuffi';

using memory = VirtualMemory.reserve(64 << 20);
const { address } = memory.grow(1000);
await memory.buffer.copyFrom(new Uint8Array(1000).fill(1));
console.log(
  `${memory.byteLength} of ${memory.reservedByteLength} bytes, ${memory.mappedByteLength} mapped`,
);

const grown = memory.grow(16 << 20);
const bytes = await grown.subarray(0, 1000).copyToHost();
console.log(
  `the same address: ${grown.address === address}, still there: ${bytes.every((byte) => byte === 1)}`,
);
