/** The connected child of a hand-over: answers each buffer with its first 16 bytes. */
import type { DeviceBuffer } from 'cuffi';
import { parentPeer } from 'cuffi/ipc';

const first = new Uint8Array(16);
const parent = parentPeer();
let kept: DeviceBuffer | undefined;

for await (const value of parent) {
  const buffer = value as DeviceBuffer;
  buffer.copyToHostSync(first);
  // The first stays open, so that the memory stays mapped.
  if (kept) buffer.close();
  else kept = buffer;
  await parent.send(first);
}
