/**
 * Receives hand-overs: `receiver-child.ts BUSY_POLL_US`. It replies to a buffer with its first word,
 * read from the device, after it closed the buffer; to null with null. It echoes its socket.
 */
import { Socket } from 'node:net';
import { DeviceBuffer } from 'cuffi';
import { ImportedPool, openIpcBuffer, parentPeer } from 'cuffi/ipc';
import { type Order, SOCKET_FD } from '../ways/children.ts';
import { Reader } from '../ways/pattern.ts';

const parent = parentPeer({ busyPollUs: Number(process.argv[2]) });
const reader = new Reader();
const kept: DeviceBuffer[] = [];
let closesPools = false;

/** Reads a buffer and closes it. */
function take(buffer: DeviceBuffer): number | string {
  const seen = reader.read(buffer);
  buffer.close();
  if (closesPools && buffer.resource instanceof ImportedPool) buffer.resource.close();
  return seen;
}

function obey(order: Order): void {
  if ('keep' in order) kept.push(...order.keep);
  else if ('drop' in order) for (const buffer of kept.splice(0)) buffer.close();
  else if ('closePools' in order) closesPools = order.closePools;
  else if ('compareNext' in order) reader.compareNext();
}

const socket = new Socket({ fd: SOCKET_FD, readable: true, writable: true });
socket.on('data', (chunk) => socket.write(chunk));
process.on('message', (message: object) => {
  if ('echo' in message) process.send?.(message.echo);
  else process.send?.(take(openIpcBuffer(message)));
});
// The parent has ended, however that happened.
process.once('disconnect', () => process.exit());

await parent.send(null);
for await (const value of parent) {
  if (value instanceof DeviceBuffer) await parent.send(take(value));
  else {
    const order = value as Order | null;
    if (order !== null) obey(order);
    await parent.send(order !== null && 'echo' in order ? order.echo : null);
  }
}
