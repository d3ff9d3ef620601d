import { copying } from './copying.ts';

/** Through memory that both processes have mapped, and locked in their pages. */
export const copiedInPageLockedMemory = copying(
  'copying, page-locked shared memory',
  (receiver) => {
    const copied = { isPageLocked: true };
    const memory = receiver.memory(copied);
    return (buffer) => {
      buffer.copyToHostSync(memory);
      return receiver.share(copied);
    };
  },
);
