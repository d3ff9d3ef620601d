import { MemoryPool } from 'cuffi';
import { PUBLIC } from '../cases/names.ts';
import { compareAndHandOver } from './hand-over.ts';
import type { Way } from './way.ts';

/** A new buffer of a pool that the receiver knows. */
export const pool: Way = {
  name: PUBLIC,
  async open({ byteLength, children }) {
    const known = MemoryPool.create({ shareable: true });
    const receiver = await children.receiver();
    return compareAndHandOver(receiver, {
      buffer: () => known.allocate(byteLength),
      give: (buffer) => receiver.give(buffer),
      after: (buffer) => buffer.close(),
      close: () => known.close({ buffers: true }),
    });
  },
};
