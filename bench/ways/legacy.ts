import { DeviceBuffer } from 'cuffi';
import { PUBLIC } from '../cases/names.ts';
import { compareAndHandOver } from './hand-over.ts';
import type { Way } from './way.ts';

/** Plain memory by its legacy handle, over a connection. */
export const legacy: Way = {
  name: PUBLIC,
  async open({ byteLength, children }) {
    const buffer = DeviceBuffer.allocate(byteLength);
    const receiver = await children.receiver();
    return compareAndHandOver(receiver, {
      buffer: () => buffer,
      give: () => receiver.give(buffer),
      close: () => buffer.close(),
    });
  },
};
