import { VirtualMemory } from 'cuffi';
import { PUBLIC } from '../cases/names.ts';
import { compareAndHandOver } from './hand-over.ts';
import type { Way } from './way.ts';

/** New virtual memory by its file descriptor: the receiver maps it, and unmaps it. */
export const virtual: Way = {
  name: PUBLIC,
  async open({ byteLength, children }) {
    const receiver = await children.receiver();
    let memory: VirtualMemory;
    return compareAndHandOver(receiver, {
      buffer() {
        memory = VirtualMemory.reserve(byteLength, { shareable: true });
        return memory.grow(byteLength);
      },
      give: (buffer) => receiver.give(buffer),
      after: () => memory.close(),
      close() {},
    });
  },
};
