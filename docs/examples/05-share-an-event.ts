/** An event tells another process when work is done. */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { CudaEvent, DeviceBuffer, Stream } from 'cuffi';
import { getIpcHandle, openIpcBuffer, openIpcEvent } from 'cuffi/ipc';

if (process.send) {
  const [message] = (await once(process, 'message')) as [{ event: unknown; buffer: unknown }];
  using event = openIpcEvent(message.event);
  using buffer = openIpcBuffer(message.buffer);
  await event.synchronize({ signal: AbortSignal.timeout(10_000) });
  console.log('the child reads', new Set(await buffer.copyToHost()));
  process.disconnect();
} else {
  using stream = Stream.create({ nonBlocking: true });
  using event = CudaEvent.create({ interprocess: true });
  using buffer = DeviceBuffer.allocate(1 << 20);
  buffer.fill(42, { stream });
  // Recorded before it is sent: an event that was never recorded counts as done.
  event.record(stream);
  const child = fork(import.meta.filename);
  child.send({ event: getIpcHandle(event), buffer: getIpcHandle(buffer) });
  await once(child, 'exit');
}
