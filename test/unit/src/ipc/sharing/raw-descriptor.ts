import { ByteWriter } from '../../../../../src/ipc/bytes.ts';
import type { IpcDescriptor } from '../../../../../src/ipc/descriptor.ts';
import { encodeFields } from '../../../../../src/ipc/sharing/descriptor-codec.ts';

/** The bytes of a descriptor whose fields may be invalid, with the checksum that it states. */
export const rawBytes = (descriptor: IpcDescriptor): Buffer =>
  ByteWriter.use(0, (writer) => {
    writer.bytes(Buffer.from('cufd'));
    writer.uint8(descriptor.version);
    writer.uint32(descriptor.checksum);
    writer.bytes(encodeFields(descriptor));
    return Buffer.from(writer.written);
  });
