/**
 * The child of a hand-over. Opens each descriptor that it is sent, and copies every full buffer
 * that arrives through the socket to the device; answers with 16 bytes read from there.
 */
import { Socket } from 'node:net';
import { DeviceBuffer } from 'cuffi';
import { openIpcBuffer } from 'cuffi/ipc';
import type { Reply, Request } from './messages.ts';

const SOCKET_FD = 4;
const READ_BYTE_LENGTH = 16;

const byteLength = Number(process.argv[2]);
// Made once, as the parent's: neither way pays for the other's allocation.
const own = DeviceBuffer.allocate(byteLength);
const received = new Uint8Array(byteLength);
const first = new Uint8Array(READ_BYTE_LENGTH);
let length = 0;

const reply = (message: Reply): void => {
  process.send?.(message);
};

function acknowledge(handle: () => void): void {
  try {
    handle();
    reply({ type: 'done', first: Array.from(first) });
  } catch (error) {
    reply({ type: 'failed', message: error instanceof Error ? error.message : String(error) });
  }
}

process.on('message', (request: Request) =>
  acknowledge(() => {
    const shared = openIpcBuffer(request.descriptor);
    shared.copyToHostSync(first);
    shared.close();
  }),
);

const socket = new Socket({ fd: SOCKET_FD, readable: true, writable: false });
socket.on('data', (chunk) => {
  received.set(chunk, length);
  length += chunk.byteLength;
  if (length < byteLength) return;
  length = 0;
  acknowledge(() => {
    own.copyFromSync(received);
    own.copyToHostSync(first);
  });
});

// Whatever became of the parent: nobody is left to answer.
process.once('disconnect', () => process.exit());

reply({ type: 'done', first: [] });
