import { copying } from './copying.ts';

/** Through a socket of node:net. */
export const copiedBySocket = copying('copying, socket', (receiver, byteLength) => {
  const host = new Uint8Array(byteLength);
  return (buffer) => receiver.send(buffer.copyToHostSync(host));
});
