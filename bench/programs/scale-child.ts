/**
 * A consumer: of what it is sent it reads the first word of the last buffer, which it sends back.
 * What it is told to keep it keeps open.
 */
import type { DeviceBuffer } from 'cuffi';
import { parentPeer } from 'cuffi/ipc';
import type { Parcel } from './consumer.ts';

const word = new Uint32Array(1);
const parent = parentPeer();
const kept: DeviceBuffer[] = [];

for await (const value of parent) {
  const { buffers, keep } = value as unknown as Parcel;
  buffers.at(-1)?.copyToHostSync(word);
  if (keep) kept.push(...buffers);
  else for (const buffer of buffers) buffer.close();
  await parent.send(word);
}
