import { DeviceBuffer } from 'cuffi';
import { BUSY_POLLING, PUBLIC } from '../cases/names.ts';
import type { HandOverChild } from '../programs/hand-over.ts';
import { compareAndHandOver } from './hand-over.ts';
import type { Opening, Way } from './way.ts';

/** A buffer that the receiver has mapped from before. */
const by = (name: string, receiverOf: (opening: Opening) => Promise<HandOverChild>): Way => ({
  name,
  async open(opening) {
    const buffer = DeviceBuffer.allocate(opening.byteLength);
    const receiver = await receiverOf(opening);
    await receiver.keep(buffer);
    return compareAndHandOver(receiver, {
      buffer: () => buffer,
      give: () => receiver.give(buffer),
      async close() {
        try {
          await receiver.drop();
        } finally {
          buffer.close();
        }
      },
    });
  },
});

export const mapped: Way = by(PUBLIC, ({ children }) => children.receiver());
/** Both ends look at the connection before they sleep. */
export const mappedBusyPolling: Way = by(BUSY_POLLING, ({ children }) =>
  children.pollingReceiver(),
);
