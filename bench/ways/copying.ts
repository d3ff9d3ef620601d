/** Copying the bytes, in place of sharing the memory. */
import { DeviceBuffer } from 'cuffi';
import type { CopyingChild } from '../programs/copying.ts';
import { compareAndHandOver } from './hand-over.ts';
import type { Opening, OpenWay, Way } from './way.ts';

const MIB = 1 << 20;
/** From here on a copy takes up to a second, and one a pass must do. */
const LARGE = 1024 * MIB;

/** A way that brings the bytes of a buffer to the host, and to the receiver of copies. */
export const copying = (
  name: string,
  prepare: (
    receiver: CopyingChild,
    byteLength: number,
  ) => (buffer: DeviceBuffer) => Promise<unknown>,
): Way => ({
  name,
  async open({ byteLength, children }: Opening): Promise<OpenWay> {
    const buffer = DeviceBuffer.allocate(byteLength);
    const receiver = await children.copyingReceiver(byteLength);
    return compareAndHandOver(receiver, {
      calls: 1,
      // A copy is the kernel's work and the driver's: V8 has little to compile.
      warmUpMs: 0,
      warmUpMostMs: 0,
      // A second of copying is worth few samples: one a pass.
      rounds: byteLength >= LARGE ? 5 : byteLength > MIB ? 7 : 31,
      buffer: () => buffer,
      give: prepare(receiver, byteLength),
      async close() {
        await receiver.end();
        buffer.close();
      },
    });
  },
});
