/**
 * The other process of a hand-over: `hand-over-child.ts BYTES GIVES_UP`. It answers what it is handed
 * with the first word of it, read from the device; nothing with nothing. What comes through the
 * socket goes back as it is where BYTES is 0; else it is a copy of so many bytes.
 */
import { Socket } from 'node:net';
import { DeviceBuffer, pin } from 'cuffi';
import { mapShared } from 'cuffi/ffi';
import { ImportedPool, openIpcBuffer, parentPeer } from 'cuffi/ipc';
import { type GivesUp, isCopy, SHARED_FD, SOCKET_FD } from './hand-over-messages.ts';

const byteLength = Number(process.argv[2]);
const givesUp = process.argv[3] as GivesUp;

const parent = parentPeer();
const word = new Uint32Array(1);
let kept: DeviceBuffer | undefined;

function read(buffer: DeviceBuffer): number {
  buffer.copyToHostSync(word);
  return word[0] as number;
}

/** Reads what was handed over, and gives it up. */
function take(buffer: DeviceBuffer): number {
  const seen = read(buffer);
  if (givesUp === 'all but the first' && !kept) {
    kept = buffer;
    return seen;
  }
  buffer.close();
  if (givesUp === 'pools too' && buffer.resource instanceof ImportedPool) buffer.resource.close();
  return seen;
}

// Made once, as the parent's: no way pays for an allocation.
function receiveCopies(): (isPinned: boolean) => number {
  const own = DeviceBuffer.allocate(byteLength);
  const [shared, pinned] = [0, 1].map(
    () => new Uint8Array(mapShared(SHARED_FD, byteLength).view(), 0, byteLength),
  ) as [Uint8Array, Uint8Array];
  // Held by what is returned: it must not be collected.
  const lock = pin(pinned);
  const received = new Uint8Array(byteLength);
  let length = 0;
  socket.on('data', (chunk) => {
    received.set(chunk, length);
    length += chunk.byteLength;
    if (length < byteLength) return;
    length = 0;
    own.copyFromSync(received);
    parent.send(read(own));
  });
  return (isPinned) => {
    own.copyFromSync(isPinned ? (lock.arrays[0] as Uint8Array) : shared);
    return read(own);
  };
}

const socket = new Socket({ fd: SOCKET_FD, readable: true, writable: true });
const copied = byteLength > 0 ? receiveCopies() : undefined;
if (!copied) socket.on('data', (chunk) => socket.write(chunk));

process.on('message', (descriptor) => process.send?.(take(openIpcBuffer(descriptor))));
// Whatever became of the parent: nobody is left to answer.
process.once('disconnect', () => process.exit());

await parent.send(null);
for await (const value of parent) {
  if (value instanceof DeviceBuffer) await parent.send(take(value));
  else if (isCopy(value)) await parent.send(copied?.(value.pinned));
  else await parent.send(null);
}
