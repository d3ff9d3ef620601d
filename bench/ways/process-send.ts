import { DeviceBuffer } from 'cuffi';
import { getIpcHandle } from 'cuffi/ipc';
import { PUBLIC } from '../cases/names.ts';
import { compareAndHandOver } from './hand-over.ts';
import type { Way } from './way.ts';

/** Plain memory by its legacy handle, as a descriptor through `process.send`. */
export const processSend: Way = {
  name: `${PUBLIC}, process.send`,
  async open({ byteLength, children }) {
    const buffer = DeviceBuffer.allocate(byteLength);
    const receiver = await children.receiver();
    return compareAndHandOver(receiver, {
      buffer: () => buffer,
      give: () => receiver.tell(getIpcHandle(buffer)),
      close: () => buffer.close(),
    });
  },
};
