import { Context, MemoryPool } from 'cuffi';
import { PUBLIC } from '../cases/names.ts';
import { compareAndHandOver } from './hand-over.ts';
import type { Way } from './way.ts';

/** A buffer of a new pool: the receiver imports both, and closes both. */
export const firstPool: Way = {
  name: PUBLIC,
  async open({ byteLength, children }) {
    const context = Context.primary();
    const receiver = await children.receiver();
    await receiver.closePools(true);
    return compareAndHandOver(receiver, {
      buffer: () =>
        MemoryPool.create({ context, shareable: true, releaseThreshold: 0 }).allocate(byteLength),
      give: (buffer) => receiver.give(buffer),
      after(buffer) {
        (buffer.resource as MemoryPool).close({ buffers: true });
        context.synchronizeSync();
      },
      close: () => receiver.closePools(false),
    });
  },
};
