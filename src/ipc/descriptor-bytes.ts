/** Descriptors as bytes: sealed by a checksum, and read by it. */
import { crc32 } from 'node:zlib';
import { IpcError } from '../errors.ts';
import type { IpcDescriptor, IpcDescriptors, IpcKind } from './descriptor.ts';
import { readFields, type Unsealed, writeFields } from './descriptor-codecs.ts';
import { DESCRIPTOR_VERSION, descriptorKinds } from './descriptor-fields.ts';
import type { DescriptorReader } from './descriptor-reader.ts';
import { DescriptorWriter } from './descriptor-writer.ts';

/** Of kind and version. */
const seeds = Object.fromEntries(
  descriptorKinds.map((kind, number) => [kind, crc32(Uint8Array.of(DESCRIPTOR_VERSION, number))]),
) as Readonly<Record<IpcKind, number>>;

/**
 * CRC-32 of kind, version and fields. The driver does not notice every altered byte of a handle: it
 * maps something, and the first use of that ends the context (CUDA_ERROR_LAUNCH_FAILED, seen on an
 * H200).
 */
export function checksumOf(descriptor: Unsealed): number {
  return crc32(writeBody(descriptor).writtenFrom(HEAD_BYTE_LENGTH), seeds[descriptor.kind]);
}

/** A descriptor, complete with its version and checksum. */
export function seal(fields: Unsealed): IpcDescriptor {
  const writer = writeBody(fields);
  const checksum = crc32(writer.writtenFrom(HEAD_BYTE_LENGTH), seeds[fields.kind]);
  // A literal that begins with a spread costs five times as much.
  const sealed = { version: DESCRIPTOR_VERSION, checksum, ...fields };
  // They may be those of another one, with its checksum.
  sealed.checksum = checksum;
  const descriptor = sealed as unknown as IpcDescriptor;
  fresh = { descriptor, end: writer.at };
  return descriptor;
}

/** Before the fields: four bytes of their own, version, kind and checksum. */
const HEAD_BYTE_LENGTH = 10;

function writeBody(descriptor: Unsealed): DescriptorWriter {
  fresh = undefined;
  const writer = new DescriptorWriter(HEAD_BYTE_LENGTH);
  writeFields(writer, descriptor);
  return writer;
}

/** What was sealed last, while its fields are there still: mostly it goes out next. */
let fresh: { readonly descriptor: IpcDescriptor; readonly end: number } | undefined;

export const altered = ({ kind, pid }: Pick<IpcDescriptor, 'kind' | 'pid'>): IpcError =>
  new IpcError(
    `this ${kind} descriptor of process ${pid} was altered on its way: its checksum is wrong`,
    undefined,
    'altered',
  );

/** Writes the checksum, then the fields. */
export function writeSealed(writer: DescriptorWriter, descriptor: IpcDescriptor): void {
  writer.uint32(descriptor.checksum);
  if (fresh?.descriptor === descriptor && writer.at === HEAD_BYTE_LENGTH) {
    writer.goTo(fresh.end);
    return;
  }
  fresh = undefined;
  writeFields(writer, descriptor);
}

/**
 * Reads what {@link writeSealed} wrote.
 *
 * @throws IpcError for fields out of their bounds, and for a checksum of other ones
 */
export function readSealed<K extends IpcKind>(
  reader: DescriptorReader,
  kind: K,
): IpcDescriptors[K] {
  const checksum = reader.uint32();
  const begin = reader.at;
  const descriptor = readFields(reader, kind, checksum);
  if (crc32(reader.since(begin), seeds[kind]) !== checksum) throw altered(descriptor);
  return descriptor;
}
