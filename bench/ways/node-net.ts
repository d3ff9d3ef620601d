import { roundTrips } from './round-trip.ts';
import type { Way } from './way.ts';

/** A byte through a Unix socket of node:net: the floor of all that goes over two event loops. */
export const nodeNet: Way = {
  name: 'node:net',
  async open({ children }) {
    const receiver = await children.receiver();
    const byte = new Uint8Array([1]);
    return roundTrips(async () => {
      const [seen] = (await receiver.echo(byte)) as Uint8Array;
      if (seen !== byte[0]) throw new Error(`${seen} came back`);
    });
  },
};
