/** The fields of descriptors as bytes: written as they are, and read as what they may be. */
import { CU_IPC_HANDLE_SIZE } from '../../ffi/constants.ts';
import { MAX_NDIM } from '../array/shape.ts';
import type {
  IpcDescriptor,
  IpcDescriptors,
  IpcEventDescriptor,
  IpcExporter,
  IpcKind,
  IpcLayout,
} from './descriptor.ts';
import {
  ACCESS,
  DESCRIPTOR_VERSION,
  DEVICE_PREFIXES,
  DTYPE_NAME,
  descriptorFields,
  exporterFields,
  type Field,
  type FieldType,
  MAX_PIECES,
  NUMBERS,
  type NumberType,
} from './descriptor-fields.ts';
import { type DescriptorReader, malformed } from './descriptor-reader.ts';
import type { DescriptorWriter } from './descriptor-writer.ts';

/** What is written of a descriptor behind its head. */
export type Unsealed = Omit<IpcDescriptor, 'checksum' | 'version'>;

/** Writes who exported it, then the other fields of its kind. */
export function writeFields(writer: DescriptorWriter, descriptor: Unsealed): void {
  writeExporter(writer, descriptor);
  writeAll(writer, coded[descriptor.kind], descriptor);
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

/** Reads what {@link writeFields} wrote. @throws IpcError for fields out of their bounds */
export function readFields<K extends IpcKind>(
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
  readAll(reader, coded[kind], fields);
  return Object.freeze(fields) as unknown as IpcDescriptors[K];
}

/** Those that come one after the other are mostly of one process. */
let written: (IpcExporter & { readonly bytes: Buffer }) | undefined;
let read: (IpcExporter & { readonly text: string }) | undefined;

function writeExporter(writer: DescriptorWriter, exporter: IpcExporter): void {
  const { device, machine, pid, startTime, pidNamespace } = exporter;
  if (
    written?.device === device &&
    written.machine === machine &&
    written.pid === pid &&
    written.startTime === startTime &&
    written.pidNamespace === pidNamespace
  ) {
    writer.bytes(written.bytes);
    return;
  }
  const begin = writer.at;
  writeAll(writer, codedExporter, exporter);
  const bytes = Buffer.from(writer.writtenFrom(begin));
  written = { device, machine, pid, startTime, pidNamespace, bytes };
}

function readExporter(reader: DescriptorReader): IpcExporter {
  const text = reader.ahead(EXPORTER_BYTE_LENGTH);
  if (read?.text === text) {
    reader.skip(EXPORTER_BYTE_LENGTH);
    return read;
  }
  const fields: Record<string, unknown> = { text };
  readAll(reader, codedExporter, fields);
  const exporter = fields as unknown as NonNullable<typeof read>;
  read = exporter;
  return exporter;
}

/** A prefix and a UUID, a UUID, a number of four bytes and two of eight. */
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

/** Those that come one after the other are mostly the same. */
function uuidCodec(): Codec<string> {
  let [hex, dashed] = ['', ''];
  const bytes = Buffer.alloc(16);
  const know = (digits: string): void => {
    hex = digits;
    dashed = hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
    bytes.write(hex, 'hex');
  };
  return {
    write: (writer, value) => {
      if (value !== dashed) know(value.replaceAll('-', ''));
      writer.bytes(bytes);
    },
    read: (reader) => {
      const found = reader.text('hex', 16);
      if (found !== hex) know(found);
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
    // Whether it is sound in itself is asked when all around it is.
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
      if (count === 0) throw malformed(`${name}: there are none`);
      return Object.freeze(reader.numbers('positive', count, name));
    },
  },
  uuid,
} as { readonly [T in FieldType]: Codec<never> };

interface CodedField {
  readonly name: string;
  readonly codec: Codec<never>;
}

/** Fields with what writes and reads them: looked up once, as most descriptors are read but once. */
const withCodecs = (fields: readonly Field[]): readonly CodedField[] =>
  fields.map(([name, type]) => ({ name, codec: codecs[type] }));

const codedExporter = withCodecs(exporterFields);
const coded: Readonly<Record<IpcKind, readonly CodedField[]>> = {
  legacy: withCodecs(descriptorFields.legacy),
  pool: withCodecs(descriptorFields.pool),
  virtual: withCodecs(descriptorFields.virtual),
  event: withCodecs(descriptorFields.event),
};
