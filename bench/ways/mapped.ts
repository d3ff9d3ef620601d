import { DeviceBuffer } from 'cuffi';
import { PUBLIC } from '../cases/names.ts';
import { compareAndHandOver } from './hand-over.ts';
import type { Way } from './way.ts';

/** A buffer that the receiver has mapped from before. */
export const mapped: Way = {
  name: PUBLIC,
  async open({ byteLength, children }) {
    const buffer = DeviceBuffer.allocate(byteLength);
    const receiver = await children.receiver();
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
};
