/** Copying the bytes, in place of sharing the memory. */
import { DeviceBuffer } from 'cuffi';
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';
import type { CopyingChild } from '../programs/copying.ts';
import { compareAndHandOver } from './hand-over.ts';
import { warmUp } from './open.ts';
import type { Opening, OpenWay, Way } from './way.ts';

const MIB = 1 << 20;
const LARGE = 1024 * MIB;

/** How often: a copy takes from microseconds to a second, of which one a pass must do. */
function limitsOf(byteLength: number, driver: DriverChoice): Partial<Contestant> {
  if (byteLength <= MIB) {
    const few = byteLength < MIB ? {} : { calls: 10, untimed: 10 };
    return { ...few, ...warmUp(driver, false) };
  }
  // The kernel's work and the driver's: V8 has little to compile, and waking up is little of it.
  const few = { calls: 1, warmUpMs: 0, warmUpMostMs: 0 };
  return byteLength < LARGE ? { ...few, untimed: 1, rounds: 7 } : { ...few, rounds: 5 };
}

/** A way that brings the bytes of a buffer to the host, and to the receiver of copies. */
export const copying = (
  name: string,
  prepare: (
    receiver: CopyingChild,
    byteLength: number,
  ) => (buffer: DeviceBuffer) => Promise<unknown>,
): Way => ({
  name,
  async open({ driver, byteLength, children }: Opening): Promise<OpenWay> {
    const buffer = DeviceBuffer.allocate(byteLength);
    const receiver = await children.copyingReceiver(byteLength);
    return compareAndHandOver(receiver, {
      ...limitsOf(byteLength, driver),
      buffer: () => buffer,
      give: prepare(receiver, byteLength),
      async close() {
        await receiver.end();
        buffer.close();
      },
    });
  },
});
