/** The binary form of descriptors: a third of the size of their JSON, and checked as strictly. */

import { crc32 } from 'node:zlib';
import { CU_IPC_HANDLE_SIZE } from '../../ffi/constants.ts';
import { MAX_NDIM } from '../array/shape.ts';
import { IpcError } from '../errors.ts';
import {
  ACCESS,
  DESCRIPTOR_VERSION,
  DEVICE_PREFIXES,
  DTYPE_NAME,
  descriptorFields,
  descriptorKinds,
  exporterFields,
  type Field,
  type FieldType,
  type IpcDescriptor,
  type IpcDescriptors,
  type IpcEventDescriptor,
  type IpcExporter,
  type IpcKind,
  type IpcLayout,
  MAX_PIECES,
  NUMBERS,
  type NumberType,
} from './descriptor.ts';

/** The longest descriptor in bytes: virtual memory in as many pieces as a message can carry. */
export const MAX_DESCRIPTOR_BYTE_LENGTH = 4096;

/**
 * Encodes a validated descriptor without checking it again. The next call overwrites the returned
 * bytes.
 */
export function writeDescriptor(descriptor: IpcDescriptor): Buffer {
  const writer = new DescriptorWriter();
  writer.bytes(MAGIC);
  writer.uint8(DESCRIPTOR_VERSION);
  writer.uint8(descriptorKinds.indexOf(descriptor.kind));
  writeWithChecksum(writer, descriptor);
  return writer.bytesFrom(0);
}

/**
 * Decodes the bytes that {@link writeDescriptor} wrote. The fields may still be inconsistent.
 *
 * @throws IpcError for anything else
 */
export function readDescriptor(bytes: Uint8Array): IpcDescriptor {
  if (!(bytes instanceof Uint8Array)) throw new TypeError('bytes must be a Uint8Array');
  if (bytes.byteLength > MAX_DESCRIPTOR_BYTE_LENGTH)
    throw malformed(`${bytes.byteLength} bytes are more than ${MAX_DESCRIPTOR_BYTE_LENGTH}`);
  const reader = new DescriptorReader(bytes);
  for (const byte of MAGIC)
    if (reader.uint8(256, 'magic') !== byte) throw malformed('wrong magic number');
  const version = reader.uint8(256, 'version');
  if (version !== DESCRIPTOR_VERSION)
    throw malformed(`they have version ${version}, not ${DESCRIPTOR_VERSION}`);
  const kind = descriptorKinds[reader.uint8(descriptorKinds.length, 'kind')];
  const descriptor = readWithChecksum(reader, kind as NonNullable<typeof kind>);
  if (reader.remaining > 0) throw malformed(`${reader.remaining} bytes follow its end`);
  return descriptor;
}

/** Returns the descriptor with its version and checksum. */
export function withChecksum<K extends IpcKind>(
  fields: Omit<IpcDescriptors[K], 'checksum' | 'version'> & { readonly kind: K },
): IpcDescriptors[K] {
  const writer = writeBody(fields as unknown as WithoutChecksum);
  const checksum = crc32(writer.bytesFrom(HEAD_BYTE_LENGTH), checksumSeeds[fields.kind]);
  // An object literal that begins with a spread takes five times as long.
  const complete = { version: DESCRIPTOR_VERSION, checksum, ...fields };
  // `fields` may come from another descriptor and contain its checksum.
  complete.checksum = checksum;
  const descriptor = complete as unknown as IpcDescriptors[K];
  lastWritten = { descriptor, end: writer.at };
  return descriptor;
}

/**
 * CRC-32 of kind, version and fields. The driver does not detect every corrupted byte of a handle.
 * It maps some memory, and the first use of that memory destroys the context
 * (CUDA_ERROR_LAUNCH_FAILED, seen on an H200).
 */
export function checksumOf(descriptor: WithoutChecksum): number {
  return crc32(writeBody(descriptor).bytesFrom(HEAD_BYTE_LENGTH), checksumSeeds[descriptor.kind]);
}

export const corrupted = ({ kind, pid }: Pick<IpcDescriptor, 'kind' | 'pid'>): IpcError =>
  new IpcError(
    `this ${kind} descriptor of process ${pid} is corrupted: its checksum is wrong`,
    undefined,
    'corrupted',
  );

// ---- Checksum and fields ----

const MAGIC = Buffer.from('cufd', 'latin1');

/** CRC-32 of version and kind, by kind: the start value of each checksum. */
const checksumSeeds = Object.fromEntries(
  descriptorKinds.map((kind, number) => [kind, crc32(Uint8Array.of(DESCRIPTOR_VERSION, number))]),
) as Readonly<Record<IpcKind, number>>;

/** Bytes before the fields: magic number (4), version, kind and checksum (4). */
const HEAD_BYTE_LENGTH = 10;

function writeBody(descriptor: WithoutChecksum): DescriptorWriter {
  lastWritten = undefined;
  const writer = new DescriptorWriter(HEAD_BYTE_LENGTH);
  writeFields(writer, descriptor);
  return writer;
}

/**
 * The last descriptor that got a checksum, while its fields are still in the buffer. It is usually
 * sent next.
 */
let lastWritten: { readonly descriptor: IpcDescriptor; readonly end: number } | undefined;

/** Writes the checksum, then the fields. */
function writeWithChecksum(writer: DescriptorWriter, descriptor: IpcDescriptor): void {
  writer.uint32(descriptor.checksum);
  if (lastWritten?.descriptor === descriptor && writer.at === HEAD_BYTE_LENGTH) {
    writer.seek(lastWritten.end);
    return;
  }
  lastWritten = undefined;
  writeFields(writer, descriptor);
}

/**
 * Reads what {@link writeWithChecksum} wrote.
 *
 * @throws IpcError for fields out of bounds, and for a wrong checksum
 */
function readWithChecksum<K extends IpcKind>(reader: DescriptorReader, kind: K): IpcDescriptors[K] {
  const checksum = reader.uint32();
  const begin = reader.at;
  const descriptor = readFields(reader, kind, checksum);
  if (crc32(reader.bytesSince(begin), checksumSeeds[kind]) !== checksum)
    throw corrupted(descriptor);
  return descriptor;
}

/** The fields of a descriptor that follow its header. */
type WithoutChecksum = Omit<IpcDescriptor, 'checksum' | 'version'>;

/** Writes the exporter, then the other fields of its kind. */
function writeFields(writer: DescriptorWriter, descriptor: WithoutChecksum): void {
  writeExporter(writer, descriptor);
  writeAll(writer, codedFields[descriptor.kind], descriptor);
}

function writeAll(writer: DescriptorWriter, fields: readonly CodedField[], from: object): void {
  const values = from as Readonly<Record<string, unknown>>;
  for (const { name, codec } of fields) codec.write(writer, values[name] as never);
}

function readAll(
  reader: DescriptorReader,
  fields: readonly CodedField[],
  into: Record<string, unknown>,
): void {
  for (const { name, codec } of fields) {
    const value = codec.read(reader, name);
    if (value !== undefined) into[name] = value;
  }
}

/** Reads what {@link writeFields} wrote. @throws IpcError for fields out of bounds */
function readFields<K extends IpcKind>(
  reader: DescriptorReader,
  kind: K,
  checksum: number,
): IpcDescriptors[K] {
  const { device, machine, pid, startTime, pidNamespace } = readExporter(reader);
  const fields: Record<string, unknown> = {
    kind,
    version: DESCRIPTOR_VERSION,
    checksum,
    device,
    machine,
    pid,
    startTime,
    pidNamespace,
  };
  readAll(reader, codedFields[kind], fields);
  return Object.freeze(fields) as unknown as IpcDescriptors[K];
}

/** Consecutive descriptors usually come from the same process. */
let lastExporterWritten: (IpcExporter & { readonly bytes: Buffer }) | undefined;
let lastExporterRead: (IpcExporter & { readonly text: string }) | undefined;

function writeExporter(writer: DescriptorWriter, exporter: IpcExporter): void {
  const { device, machine, pid, startTime, pidNamespace } = exporter;
  if (
    lastExporterWritten?.device === device &&
    lastExporterWritten.machine === machine &&
    lastExporterWritten.pid === pid &&
    lastExporterWritten.startTime === startTime &&
    lastExporterWritten.pidNamespace === pidNamespace
  ) {
    writer.bytes(lastExporterWritten.bytes);
    return;
  }
  const begin = writer.at;
  writeAll(writer, codedExporter, exporter);
  const bytes = Buffer.from(writer.bytesFrom(begin));
  lastExporterWritten = { device, machine, pid, startTime, pidNamespace, bytes };
}

function readExporter(reader: DescriptorReader): IpcExporter {
  const text = reader.peek(EXPORTER_BYTE_LENGTH);
  if (lastExporterRead?.text === text) {
    reader.skip(EXPORTER_BYTE_LENGTH);
    return lastExporterRead;
  }
  const fields: Record<string, unknown> = { text };
  readAll(reader, codedExporter, fields);
  const exporter = fields as unknown as NonNullable<typeof lastExporterRead>;
  lastExporterRead = exporter;
  return exporter;
}

/** A prefix byte and a UUID, a UUID, a number of four bytes and two of eight. */
const EXPORTER_BYTE_LENGTH = 1 + 16 + 16 + 4 + 8 + 8;

interface Codec<T> {
  write(writer: DescriptorWriter, value: T): void;
  read(reader: DescriptorReader, name: string): unknown;
}

const number = (type: NumberType): Codec<number> => ({
  write:
    NUMBERS[type][1] === 0xffff_ffff
      ? (writer, value) => writer.uint32(value)
      : (writer, value) => writer.int53(value),
  read: (reader, name) => reader.number(type, name),
});

/** Consecutive UUIDs are usually equal. */
function uuidCodec(): Codec<string> {
  let [hex, dashed] = ['', ''];
  const bytes = Buffer.alloc(16);
  const cache = (digits: string): void => {
    hex = digits;
    dashed = hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
    bytes.write(hex, 'hex');
  };
  return {
    write: (writer, value) => {
      if (value !== dashed) cache(value.replaceAll('-', ''));
      writer.bytes(bytes);
    },
    read: (reader) => {
      const found = reader.text('hex', 16);
      if (found !== hex) cache(found);
      return dashed;
    },
  };
}

const uuid = uuidCodec();
const deviceUuid = uuidCodec();

const handle: Codec<string> = {
  write: (writer, value) => writer.text(value, 'base64', CU_IPC_HANDLE_SIZE),
  read: (reader) => reader.text('base64', CU_IPC_HANDLE_SIZE),
};

const codecs: { readonly [T in FieldType]: Codec<never> } = {
  uint32: number('uint32'),
  positive32: number('positive32'),
  size: number('size'),
  positive: number('positive'),
  access: {
    write: (writer, value: (typeof ACCESS)[number]) => writer.uint8(ACCESS.indexOf(value)),
    read: (reader, name) => ACCESS[reader.uint8(ACCESS.length, name)],
  },
  device: {
    write: (writer, value: string) => {
      const prefix = DEVICE_PREFIXES.findIndex((each) => value.startsWith(each));
      writer.uint8(prefix);
      deviceUuid.write(writer, value.slice(4) as never);
    },
    read: (reader, name) =>
      `${DEVICE_PREFIXES[reader.uint8(DEVICE_PREFIXES.length, name)]}${deviceUuid.read(reader, name)}`,
  },
  'event?': {
    write: (writer, value: IpcEventDescriptor | undefined) => {
      writer.uint8(value ? 1 : 0);
      if (!value) return;
      writer.uint32(value.checksum);
      writeFields(writer, value);
    },
    // Its checksum is checked after all other fields.
    read: (reader, name) =>
      reader.uint8(2, name) === 0 ? undefined : readFields(reader, 'event', reader.uint32()),
  },
  handle,
  'handle?': {
    write: (writer, value: string | null) => {
      writer.uint8(value === null ? 0 : 1);
      if (value !== null) handle.write(writer, value as never);
    },
    read: (reader, name) => (reader.uint8(2, name) === 0 ? null : handle.read(reader, name)),
  },
  id: {
    write: (writer, value: string) => writer.text(value, 'hex', 16),
    read: (reader) => reader.text('hex', 16),
  },
  'layout?': {
    write: (writer, value: IpcLayout | undefined) => {
      writer.uint8(value ? value.dtype.length : 0);
      if (!value) return;
      writer.text(value.dtype, 'latin1', value.dtype.length);
      writer.uint8(value.shape.length);
      for (const length of value.shape) writer.int53(length);
      for (const stride of value.strides) writer.int53(stride);
    },
    read: (reader, name) => {
      const length = reader.uint8(256, name);
      if (length === 0) return undefined;
      const dtype = reader.text('latin1', length);
      if (!DTYPE_NAME.test(dtype)) throw malformed(`${name}: that is not the name of a dtype`);
      const ndim = reader.uint8(MAX_NDIM + 1, name);
      const shape = Object.freeze(reader.numbers('size', ndim, name));
      const strides = Object.freeze(reader.numbers('stride', ndim, name));
      return Object.freeze({ dtype, shape, strides });
    },
  },
  pieces: {
    write: (writer, value: readonly number[]) => {
      writer.uint8(value.length);
      for (const byteLength of value) writer.int53(byteLength);
    },
    read: (reader, name) => {
      const count = reader.uint8(MAX_PIECES + 1, name);
      if (count === 0) throw malformed(`${name}: the list is empty`);
      return Object.freeze(reader.numbers('positive', count, name));
    },
  },
  uuid,
} as { readonly [T in FieldType]: Codec<never> };

interface CodedField {
  readonly name: string;
  readonly codec: Codec<never>;
}

/**
 * Fields with their codecs. They are looked up once, because most descriptors are read only once.
 */
const withCodecs = (fields: readonly Field[]): readonly CodedField[] =>
  fields.map(([name, type]) => ({ name, codec: codecs[type] }));

const codedExporter = withCodecs(exporterFields);
const codedFields: Readonly<Record<IpcKind, readonly CodedField[]>> = {
  legacy: withCodecs(descriptorFields.legacy),
  pool: withCodecs(descriptorFields.pool),
  virtual: withCodecs(descriptorFields.virtual),
  event: withCodecs(descriptorFields.event),
};

/**
 * Reads the bytes of a descriptor from another process. Never reads beyond their end; refuses
 * values out of bounds.
 */
class DescriptorReader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes =
      bytes instanceof Buffer
        ? bytes
        : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** The offset of the next part. */
  get at(): number {
    return this.#at;
  }

  get remaining(): number {
    return this.#bytes.byteLength - this.#at;
  }

  /** The bytes that were read since an offset. */
  bytesSince(begin: number): Buffer {
    return this.#bytes.subarray(begin, this.#at);
  }

  /** The next bytes, one character each, without advancing. Fewer at the end. */
  peek(byteLength: number): string {
    return this.#bytes.toString('latin1', this.#at, this.#at + byteLength);
  }

  /** Advances over bytes that were peeked at. */
  skip(byteLength: number): void {
    this.#take(byteLength);
  }

  /** Reads a number below `count`. */
  uint8(count: number, name: string): number {
    const value = this.#bytes[this.#take(1)] as number;
    if (value >= count) throw malformed(`${name}: ${value} is not below ${count}`);
    return value;
  }

  uint32(): number {
    const at = this.#take(4);
    const bytes = this.#bytes;
    return (
      ((bytes[at] as number) |
        ((bytes[at + 1] as number) << 8) |
        ((bytes[at + 2] as number) << 16) |
        ((bytes[at + 3] as number) << 24)) >>>
      0
    );
  }

  number(type: NumberType, name: string): number {
    const [least, most] = NUMBERS[type];
    const low = this.uint32();
    const value = most === 0xffff_ffff ? low : low + (this.uint32() | 0) * 2 ** 32;
    // A value above 2^53 may be rounded, but stays above it.
    if (value < least || value > most)
      throw malformed(`${name}: ${value} is not from ${least} to ${most}`);
    return value;
  }

  numbers(type: NumberType, count: number, name: string): number[] {
    const values: number[] = [];
    for (let i = 0; i < count; i++) values.push(this.number(type, name));
    return values;
  }

  text(encoding: 'base64' | 'hex' | 'latin1', byteLength: number): string {
    const at = this.#take(byteLength);
    return this.#bytes.toString(encoding, at, at + byteLength);
  }

  #take(byteLength: number): number {
    const at = this.#at;
    if (byteLength > this.remaining) throw malformed('they are truncated');
    this.#at = at + byteLength;
    return at;
  }
}

/** The error for bytes that are not a descriptor. */
const malformed = (why: string): IpcError =>
  new IpcError(`these bytes are not a cuffi descriptor: ${why}`, undefined, 'invalid-descriptor');

const scratch = Buffer.alloc(MAX_DESCRIPTOR_BYTE_LENGTH);

/** Writes the parts of a descriptor one after the other, little-endian. */
class DescriptorWriter {
  #at: number;

  /** @param begin how many bytes to leave free at the start */
  constructor(begin = 0) {
    this.#at = begin;
  }

  /** The offset of the next part. */
  get at(): number {
    return this.#at;
  }

  /** The bytes written since an offset. Valid until another writer writes. */
  bytesFrom(begin: number): Buffer {
    return scratch.subarray(begin, this.#at);
  }

  /** Continues after bytes that an earlier writer left in the buffer. */
  seek(end: number): void {
    this.#at = end;
  }

  uint8(value: number): void {
    scratch[this.#at++] = value;
  }

  uint32(value: number): void {
    const at = this.#at;
    scratch[at] = value;
    scratch[at + 1] = value >>> 8;
    scratch[at + 2] = value >>> 16;
    scratch[at + 3] = value >>> 24;
    this.#at = at + 4;
  }

  /** Writes a safe integer in eight bytes. */
  int53(value: number): void {
    const high = Math.floor(value / 2 ** 32);
    this.uint32(value - high * 2 ** 32);
    this.uint32(high);
  }

  text(text: string, encoding: 'base64' | 'hex' | 'latin1', byteLength: number): void {
    scratch.write(text, this.#at, byteLength, encoding);
    this.#at += byteLength;
  }

  bytes(bytes: Uint8Array): void {
    scratch.set(bytes, this.#at);
    this.#at += bytes.byteLength;
  }
}
