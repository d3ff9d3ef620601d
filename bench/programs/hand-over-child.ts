/**
 * The receiver of hand-overs, `hand-over-child.ts BUSY_POLL_US`: it answers what it is handed with the first word of it, read from the
 * device, and closes it before; nothing with nothing. What comes through the socket goes back.
 */
import { Socket } from 'node:net';
import { DeviceBuffer } from 'cuffi';
import { ImportedPool, openIpcBuffer, parentPeer } from 'cuffi/ipc';
import { type Order, SOCKET_FD } from './child-messages.ts';
import { WordReader } from './word-reader.ts';

const parent = parentPeer({ busyPollUs: Number(process.argv[2]) });
const reader = new WordReader();
const kept: DeviceBuffer[] = [];
let closesPools = false;

/** Reads what was handed over, and gives it up. */
function take(buffer: DeviceBuffer): number | string {
  const seen = reader.read(buffer);
  buffer.close();
  if (closesPools && buffer.resource instanceof ImportedPool) buffer.resource.close();
  return seen;
}

function obey(order: Order): void {
  if ('keep' in order) kept.push(order.keep);
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
// Whatever became of the parent: nobody is left to answer.
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
