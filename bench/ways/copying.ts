/** Copying bytes to another process instead of sharing memory. */
import { DeviceBuffer } from 'cuffi';
import type { Contestant } from '../measure.ts';
import type { DriverChoice } from '../results.ts';
import type { CopyingChild } from './children.ts';
import { compareAndHandOver, type Way, warmUp } from './way.ts';

const MIB = 1 << 20;
const LARGE = 1024 * MIB;

/** A copy takes between microseconds and a second, so large ones have fewer calls and rounds. */
function limitsOf(byteLength: number, driver: DriverChoice): Partial<Contestant> {
  if (byteLength <= MIB) {
    const few = byteLength < MIB ? {} : { calls: 10, untimed: 10 };
    return { ...few, ...warmUp(driver, false) };
  }
  // The kernel and the driver do the work; there is little for V8 to compile.
  const few = { calls: 1, warmUpMs: 0, warmUpMostMs: 0 };
  return byteLength < LARGE ? { ...few, untimed: 1, rounds: 7 } : { ...few, rounds: 4 };
}

/** @param prepare returns the step that copies the buffer to the host and to the child */
const copying = (
  name: string,
  prepare: (child: CopyingChild, byteLength: number) => (buffer: DeviceBuffer) => Promise<unknown>,
): Way => ({
  name,
  async open({ driver, byteLength, children }) {
    const buffer = DeviceBuffer.allocate(byteLength);
    const child = await children.copyingChild(byteLength);
    return compareAndHandOver(child, {
      ...limitsOf(byteLength, driver),
      buffer: () => buffer,
      give: prepare(child, byteLength),
      async close() {
        await child.end();
        buffer.close();
      },
    });
  },
});

/** Through a socket of node:net. */
export const copiedBySocket: Way = copying('copying, socket', (child, byteLength) => {
  const host = new Uint8Array(byteLength);
  return (buffer) => child.send(buffer.copyToHostSync(host));
});

const inMemory = (name: string, isPageLocked: boolean): Way =>
  copying(name, (child) => {
    const memory = child.memory({ isPageLocked });
    return (buffer) => {
      buffer.copyToHostSync(memory);
      return child.share({ isPageLocked });
    };
  });

/** Through ordinary memory that both processes map. */
export const copiedInSharedMemory: Way = inMemory('copying, shared memory', false);
/** Through page-locked memory that both processes map. */
export const copiedInPageLockedMemory: Way = inMemory('copying, page-locked shared memory', true);
