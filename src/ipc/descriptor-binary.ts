/** Descriptors as bytes: a third of their JSON, and as strictly checked. */
import { type IpcDescriptor, parseDescriptor, sound } from './descriptor.ts';
import { readSealed, writeSealed } from './descriptor-bytes.ts';
import { DESCRIPTOR_VERSION, descriptorKinds } from './descriptor-fields.ts';
import { DescriptorReader, malformed } from './descriptor-reader.ts';
import { DescriptorWriter, MAX_DESCRIPTOR_BYTE_LENGTH } from './descriptor-writer.ts';

/**
 * A descriptor in its compact form, for sockets and shared memory: 120 to 250 bytes for most.
 *
 * @throws IpcError for anything but a sound descriptor
 */
export const encodeDescriptor = (descriptor: IpcDescriptor): Uint8Array =>
  new Uint8Array(writeDescriptor(parseDescriptor(descriptor)));

/** As {@link encodeDescriptor}, of one that is sound; the bytes are there until the next call. */
export function writeDescriptor(descriptor: IpcDescriptor): Buffer {
  const writer = new DescriptorWriter();
  writer.bytes(MAGIC);
  writer.uint8(DESCRIPTOR_VERSION);
  writer.uint8(descriptorKinds.indexOf(descriptor.kind));
  writeSealed(writer, descriptor);
  return writer.writtenFrom(0);
}

/**
 * The descriptor that {@link encodeDescriptor} made these bytes of.
 *
 * @throws IpcError for anything else
 */
export function decodeDescriptor(bytes: Uint8Array): IpcDescriptor {
  if (!(bytes instanceof Uint8Array)) throw new TypeError('bytes must be a Uint8Array');
  if (bytes.byteLength > MAX_DESCRIPTOR_BYTE_LENGTH)
    throw malformed(`${bytes.byteLength} bytes are more than ${MAX_DESCRIPTOR_BYTE_LENGTH}`);
  const reader = new DescriptorReader(bytes);
  for (const byte of MAGIC)
    if (reader.uint8(256, 'magic') !== byte) throw malformed('they begin with other bytes');
  const version = reader.uint8(256, 'version');
  if (version !== DESCRIPTOR_VERSION)
    throw malformed(`they are of version ${version}, not ${DESCRIPTOR_VERSION}`);
  const kind = descriptorKinds[reader.uint8(descriptorKinds.length, 'kind')];
  const descriptor = readSealed(reader, kind as NonNullable<typeof kind>);
  if (reader.left > 0) throw malformed(`${reader.left} bytes follow its end`);
  return sound(descriptor);
}

const MAGIC = Buffer.from('cufd', 'latin1');
