/** Managed memory: one address for CPU and GPU. */
import { ManagedMemory } from 'cuffi';

const memory = ManagedMemory.create();
using buffer = memory.allocate(1 << 20);

// Only where CPU and GPU may use it at the same time is it an ArrayBuffer too.
if (memory.hostAccessible) {
  new Float32Array(buffer.buffer).fill(1.5);
  memory.prefetch(buffer, memory.context.device);
} else {
  await buffer.copyFrom(new Float32Array(1 << 18).fill(1.5));
}
const [first] = await buffer.copyToHost(new Float32Array(1));
console.log(`the device reads ${first}`);

try {
  memory.allocate(2 * memory.context.memoryInfo().total);
} catch (error) {
  console.log((error as Error).message);
}
