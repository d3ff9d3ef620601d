/** The fields of descriptors as bytes: written as they are, and read as what they may be. */
import { crc32 } from 'node:zlib';
import { CU_IPC_HANDLE_SIZE } from '../../ffi/constants.ts';
import { MAX_NDIM } from '../array/shape.ts';
import { IpcError } from '../errors.ts';
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
  descriptorKinds,
  exporterFields,
  type FieldType,
  MAX_PIECES,
  NUMBERS,
  type NumberType,
} from './descriptor-fields.ts';
import { type DescriptorReader, malformed } from './descriptor-reader.ts';
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

type Unsealed = Omit<IpcDescriptor, 'checksum' | 'version'>;

/** Before the fields: four bytes of their own, version, kind and checksum. */
const HEAD_BYTE_LENGTH = 10;

function writeBody(descriptor: Unsealed): DescriptorWriter {
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
  if (fresh?.descriptor === descriptor && writer.at === HEAD_BYTE_LENGTH) writer.goTo(fresh.end);
  else writeFields(writer, descriptor);
}

function writeFields(writer: DescriptorWriter, descriptor: Unsealed): void {
  fresh = undefined;
  writeExporter(writer, descriptor);
  const values = descriptor as unknown as Readonly<Record<string, unknown>>;
  for (const [name, type] of descriptorFields[descriptor.kind])
    codecs[type].write(writer, values[name] as never);
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
  for (const [name, type] of descriptorFields[kind]) {
    const value = codecs[type].read(reader, name);
    if (value !== undefined) fields[name] = value;
  }
  return Object.freeze(fields) as unknown as IpcDescriptors[K];
}

/** Those that come one after the other are mostly of one process. */
let written: IpcExporter & { readonly bytes: Buffer };
let read: IpcExporter & { readonly text: string };

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
  const values = exporter as unknown as Readonly<Record<string, unknown>>;
  for (const [name, type] of exporterFields) codecs[type].write(writer, values[name] as never);
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
  for (const [name, type] of exporterFields) fields[name] = codecs[type].read(reader, name);
  read = fields as unknown as typeof read;
  return read;
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
      if (value) writeSealed(writer, value);
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
