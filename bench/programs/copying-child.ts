/**
 * Receives copies: `copying-child.ts BYTES`. It copies to its own device memory what is in the shared
 * memory, or so many bytes from the socket, and replies with the first word there. After null it
 * compares the next copy as a whole.
 */
import { Socket } from 'node:net';
import { DeviceBuffer, pin } from 'cuffi';
import { mapShared } from 'cuffi/ffi';
import { parentPeer } from 'cuffi/ipc';
import { type Copied, SHARED_FD, SOCKET_FD } from '../ways/children.ts';
import { Reader } from '../ways/pattern.ts';

const byteLength = Number(process.argv[2]);
const parent = parentPeer();
const reader = new Reader();
// Allocated once, as the parent's: no way pays for it.
const own = DeviceBuffer.allocate(byteLength);
const [pageable, pageLocked] = [0, 1].map(
  () => new Uint8Array(mapShared(SHARED_FD, byteLength).view(), 0, byteLength),
) as [Uint8Array, Uint8Array];
// The loop below keeps it alive; collected, it would unlock the memory.
const lock = pin(pageLocked);
const received = new Uint8Array(byteLength);
let length = 0;

function take(bytes: Uint8Array): number | string {
  own.copyFromSync(bytes);
  return reader.read(own);
}

const socket = new Socket({ fd: SOCKET_FD, readable: true, writable: true });
socket.on('data', (chunk) => {
  received.set(chunk, length);
  length += chunk.byteLength;
  if (length < byteLength) return;
  length = 0;
  parent.send(take(received));
});
// The parent has ended, however that happened.
process.once('disconnect', () => process.exit());

await parent.send(null);
for await (const value of parent) {
  const copied = value as Copied | null;
  if (copied)
    await parent.send(take(copied.isPageLocked ? (lock.arrays[0] as Uint8Array) : pageable));
  else {
    reader.compareNext();
    await parent.send(null);
  }
}
