/** Device memory: allocated, filled, copied, seen in parts, given back. */
import { DeviceBuffer } from 'cuffi';

using buffer = DeviceBuffer.allocate(16);
await buffer.copyFrom(new Float32Array([1, 2, 3, 4]));

// A subarray is the same memory.
using second = buffer.subarray(4, 8);
await second.copyFrom(new Float32Array([20]));

using other = DeviceBuffer.allocate(16);
buffer.copyTo(other);
console.log(await other.copyToHost(new Float32Array(4)));
