import { copying } from './copying.ts';

/** Through ordinary memory that both processes have mapped. */
export const copiedInSharedMemory = copying('copying, shared memory', (receiver) => {
  const copied = { isPageLocked: false };
  const memory = receiver.memory(copied);
  return (buffer) => {
    buffer.copyToHostSync(memory);
    return receiver.share(copied);
  };
});
