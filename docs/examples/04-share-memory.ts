/** One buffer, two processes, no copy. */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { DeviceBuffer } from 'cuffi';
import { getIpcHandle, openIpcBuffer } from 'cuffi/ipc';

if (process.send) {
  const [message] = await once(process, 'message');
  using buffer = openIpcBuffer(message);
  console.log('the child reads', await buffer.copyToHost(new Float32Array(3)));
  await buffer.copyFrom(new Float32Array([4, 5, 6]));
  process.disconnect();
} else {
  using buffer = DeviceBuffer.allocate(12);
  await buffer.copyFrom(new Float32Array([1, 2, 3]));
  const child = fork(import.meta.filename);
  child.send(getIpcHandle(buffer));
  await once(child, 'exit');
  console.log('the parent reads', await buffer.copyToHost(new Float32Array(3)));
}
