/** Descriptors as bytes: a third of their JSON, and as strictly checked. */
import { CU_IPC_HANDLE_SIZE } from '../../ffi/constants.ts';
import { IpcError } from '../errors.ts';
import {
  DESCRIPTOR_VERSION,
  type IpcDescriptor,
  type IpcEventDescriptor,
  type IpcKind,
  type IpcLayout,
  parseDescriptor,
} from './descriptor.ts';
import { descriptorFields, descriptorKinds, type FieldType } from './descriptor-fields.ts';

/** The longest descriptor in bytes: of virtual memory in as many pieces as a message can carry. */
export const MAX_DESCRIPTOR_BYTE_LENGTH = 4096;

/**
 * A descriptor in its compact form, for sockets and shared memory: 120 to 250 bytes for most.
 *
 * @throws IpcError for anything but a sound descriptor
 */
export function encodeDescriptor(descriptor: IpcDescriptor): Uint8Array {
  const sound = parseDescriptor(descriptor);
  const writer = new Writer();
  writer.bytes.write(MAGIC, writer.take(4), 'latin1');
  writer.bytes.writeUInt8(DESCRIPTOR_VERSION, writer.take(1));
  writer.bytes.writeUInt8(descriptorKinds.indexOf(sound.kind), writer.take(1));
  writeFields(writer, sound);
  return new Uint8Array(writer.bytes.subarray(0, writer.at));
}

function writeFields(writer: Writer, descriptor: IpcDescriptor): void {
  writer.bytes.writeUInt32LE(descriptor.checksum, writer.take(4));
  for (const [name, type] of descriptorFields[descriptor.kind])
    codecs[type].write(writer, (descriptor as unknown as Record<string, unknown>)[name] as never);
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
  const reader = new Reader(bytes);
  if (reader.bytes.toString('latin1', reader.take(4), 4) !== MAGIC)
    throw malformed('they begin with other bytes');
  const version = reader.bytes.readUInt8(reader.take(1));
  const kind = descriptorKinds[reader.bytes.readUInt8(reader.take(1))];
  if (!kind) throw malformed('they are of no kind');
  const fields = readFields(reader, kind, version);
  if (reader.at !== bytes.byteLength)
    throw malformed(`${bytes.byteLength - reader.at} bytes follow its end`);
  return parseDescriptor(fields);
}

function readFields(reader: Reader, kind: IpcKind, version: number): Record<string, unknown> {
  const checksum = reader.bytes.readUInt32LE(reader.take(4));
  const fields: Record<string, unknown> = { kind, version, checksum };
  for (const [name, type] of descriptorFields[kind]) {
    const value = codecs[type].read(reader);
    if (value !== undefined) fields[name] = value;
  }
  return fields;
}

const MAGIC = 'cufd';

const malformed = (why: string): IpcError =>
  new IpcError(`these bytes are no descriptor of cuffi: ${why}`, undefined, 'no-descriptor');

/** Every byte of a descriptor is written: what the one before left is never seen. */
const scratch = Buffer.alloc(MAX_DESCRIPTOR_BYTE_LENGTH);

class Writer {
  readonly bytes = scratch;
  at = 0;

  /** Where the next `byteLength` bytes go. */
  take(byteLength: number): number {
    const at = this.at;
    this.at += byteLength;
    return at;
  }

  put(text: string, encoding: 'base64' | 'hex' | 'latin1', byteLength: number): void {
    this.bytes.write(text, this.take(byteLength), encoding);
  }

  number(value: number): void {
    this.bytes.writeBigInt64LE(BigInt(value), this.take(8));
  }
}

class Reader {
  readonly bytes: Buffer;
  at = 0;

  constructor(bytes: Uint8Array) {
    this.bytes = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  take(byteLength: number): number {
    const at = this.at;
    this.at += byteLength;
    if (this.at > this.bytes.byteLength) throw malformed('they end too soon');
    return at;
  }

  get(encoding: 'base64' | 'hex' | 'latin1', byteLength: number): string {
    const at = this.take(byteLength);
    return this.bytes.toString(encoding, at, at + byteLength);
  }

  /** What is beyond 2^53 stays so, and is refused by the schema. */
  number(): number {
    return Number(this.bytes.readBigInt64LE(this.take(8)));
  }

  numbers(count: number): number[] {
    return Array.from({ length: count }, () => this.number());
  }
}

interface Codec<T> {
  write(writer: Writer, value: T): void;
  read(reader: Reader): unknown;
}

const byte = {
  write: (writer: Writer, value: number) => writer.bytes.writeUInt8(value, writer.take(1)),
  read: (reader: Reader) => reader.bytes.readUInt8(reader.take(1)),
};

/** Hex digits with the dashes of a UUID. */
const dashed = (hex: string): string =>
  hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');

const uuid: Codec<string> = {
  write: (writer, value) => writer.put(value.replaceAll('-', ''), 'hex', 16),
  read: (reader) => dashed(reader.get('hex', 16)),
};

const handle: Codec<string> = {
  write: (writer, value) => writer.put(value, 'base64', CU_IPC_HANDLE_SIZE),
  read: (reader) => reader.get('base64', CU_IPC_HANDLE_SIZE),
};

const ACCESS = ['read-write', 'read'] as const;
const PREFIXES = ['GPU-', 'MIG-'] as const;

const codecs: { readonly [T in FieldType]: Codec<never> } = {
  access: {
    write: (writer, value: (typeof ACCESS)[number]) => byte.write(writer, ACCESS.indexOf(value)),
    read: (reader) => ACCESS[byte.read(reader)],
  },
  device: {
    write: (writer, value: string) => {
      byte.write(writer, value.startsWith('MIG-') ? 1 : 0);
      uuid.write(writer, value.slice(4) as never);
    },
    read: (reader) => `${PREFIXES[byte.read(reader)]}${uuid.read(reader)}`,
  },
  'event?': {
    write: (writer, value: IpcEventDescriptor | undefined) => {
      byte.write(writer, value ? 1 : 0);
      if (value) writeFields(writer, value);
    },
    read: (reader) =>
      byte.read(reader) === 0 ? undefined : readFields(reader, 'event', DESCRIPTOR_VERSION),
  },
  handle,
  'handle?': {
    write: (writer, value: string | null) => {
      byte.write(writer, value === null ? 0 : 1);
      if (value !== null) handle.write(writer, value as never);
    },
    read: (reader) => (byte.read(reader) === 0 ? null : handle.read(reader)),
  },
  id: {
    write: (writer, value: string) => writer.put(value, 'hex', 16),
    read: (reader) => reader.get('hex', 16),
  },
  'layout?': {
    write: (writer, value: IpcLayout | undefined) => {
      byte.write(writer, value ? value.dtype.length : 0);
      if (!value) return;
      writer.put(value.dtype, 'latin1', value.dtype.length);
      byte.write(writer, value.shape.length);
      for (const each of [...value.shape, ...value.strides]) writer.number(each);
    },
    read: (reader) => {
      const length = byte.read(reader);
      if (length === 0) return undefined;
      const dtype = reader.get('latin1', length);
      const dimensions = byte.read(reader);
      const shape = reader.numbers(dimensions);
      return { dtype, shape, strides: reader.numbers(dimensions) };
    },
  },
  sizes: {
    write: (writer, value: readonly number[]) => {
      byte.write(writer, value.length);
      for (const size of value) writer.number(size);
    },
    read: (reader) => reader.numbers(byte.read(reader)),
  },
  uint32: {
    write: (writer, value: number) => writer.bytes.writeUInt32LE(value, writer.take(4)),
    read: (reader) => reader.bytes.readUInt32LE(reader.take(4)),
  },
  uint53: {
    write: (writer, value: number) => writer.number(value),
    read: (reader) => reader.number(),
  },
  uuid,
} as { readonly [T in FieldType]: Codec<never> };
