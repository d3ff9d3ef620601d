import { DeviceBuffer, Stream } from 'cuffi';
import { PUBLIC } from '../cases/names.ts';
import { compareAndHandOver } from './hand-over.ts';
import type { Way } from './way.ts';

export const POINTS = 'ready and done points';

/** A buffer that the receiver has mapped, while its change is only queued: a stream there waits for it. */
export const mappedPoints: Way = {
  name: `${PUBLIC}, ${POINTS}`,
  async open({ byteLength, children }) {
    const buffer = DeviceBuffer.allocate(byteLength);
    const stream = Stream.create({ nonBlocking: true });
    const receiver = await children.receiver();
    await receiver.keep(buffer);
    return compareAndHandOver(receiver, {
      buffer: () => buffer,
      change: (changed, word) =>
        changed.subarray(0, 4).fill(word, { elementByteLength: 4, stream }),
      give: () => receiver.give(buffer, stream),
      async close() {
        try {
          await receiver.drop();
        } finally {
          buffer.close();
          stream.close();
        }
      },
    });
  },
};
