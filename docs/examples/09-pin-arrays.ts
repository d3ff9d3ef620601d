/** Typed arrays that exist already, page-locked while they are copied. */
import { DeviceBuffer, pin } from 'cuffi';

const memory = new ArrayBuffer(2 << 20);
const up = new Float32Array(memory, 0, 1 << 18).fill(0.5);
const down = new Float32Array(memory, 1 << 20);

using buffer = DeviceBuffer.allocate(up.byteLength);
{
  using _pinned = pin(memory);
  await buffer.copyFrom(up);
  await buffer.copyToHost(down);
  console.log(`copied back: ${down.every((value) => value === 0.5)}`);
}
