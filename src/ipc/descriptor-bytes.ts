/**
 * The fields of descriptors as bytes, as connections send them: a third of the size of their JSON,
 * and checked as strictly.
 */

import { CU_IPC_HANDLE_SIZE } from '../../ffi/constants.ts';
import { MAX_NDIM } from '../array/shape.ts';
import { IpcError } from '../errors.ts';
import { ByteReader, ByteWriter } from './bytes.ts';
import {
  ACCESS,
  type AnyFields,
  checkConsistency,
  DEVICE_PREFIXES,
  type DescriptorFields,
  DTYPE_NAME,
  descriptorFields,
  descriptorKinds,
  exporterFields,
  type HostField,
  type HostFields,
  type HostKind,
  hostFields,
  type IpcExporter,
  type IpcKind,
  type IpcLayout,
  isHostFields,
  MAX_PIECES,
  NUMBERS,
  type NumberType,
} from './descriptor.ts';

/** The most bytes that fields take: virtual memory in as many pieces as a message can carry. */
export const MAX_DESCRIPTOR_BYTE_LENGTH = 4096;

/** Encodes fields that are known to be valid. */
export const encodeFields = (fields: AnyFields): Buffer =>
  ByteWriter.use(0, (writer) => {
    if (isHostFields(fields)) {
      writer.uint8(descriptorKinds.length + hostKinds.indexOf(fields.kind));
      writeAll(writer, codedHostFields[fields.kind], fields);
    } else {
      writer.uint8(descriptorKinds.indexOf(fields.kind));
      writeFields(writer, fields);
    }
    return Buffer.from(writer.written);
  });

/**
 * Decodes the bytes that {@link encodeFields} returned. The fields are checked and frozen.
 *
 * @throws IpcError for any other bytes
 */
export function decodeFields(bytes: Uint8Array): DescriptorFields {
  const fields = readFields(descriptorReader(bytes));
  checkConsistency(fields);
  return fields;
}

/** Like {@link decodeFields}, for anything that a connection can send. @throws IpcError */
export function decodeAnyFields(bytes: Uint8Array): AnyFields {
  const host = hostKinds[(bytes[0] ?? 0) - descriptorKinds.length];
  return host ? readHostFields(host, descriptorReader(bytes.subarray(1))) : decodeFields(bytes);
}

/** Returns a reader whose errors say that the bytes are not a descriptor. @throws IpcError */
export function descriptorReader(bytes: Uint8Array): ByteReader {
  if (bytes.byteLength > MAX_DESCRIPTOR_BYTE_LENGTH)
    throw malformed(`${bytes.byteLength} bytes are more than ${MAX_DESCRIPTOR_BYTE_LENGTH}`);
  return new ByteReader(bytes, malformed);
}

/** Like {@link decodeFields}, to the end of the bytes. The fields may still be inconsistent. */
export function readFields(reader: ByteReader): DescriptorFields {
  const kind = descriptorKinds[numberBelow(descriptorKinds.length, reader, 'kind')];
  const fields = readFieldsOf(kind as IpcKind, reader);
  expectEnd(reader);
  return fields;
}

/** The error for bytes that are not a descriptor. */
export const malformed = (why: string): IpcError =>
  new IpcError(`these bytes are not a cuffi descriptor: ${why}`, undefined, 'invalid-descriptor');

// ---- The exporter, then the other fields of a kind ----

function writeFields(writer: ByteWriter, fields: DescriptorFields): void {
  writeExporter(writer, fields);
  writeAll(writer, codedFields[fields.kind], fields);
}

function readFieldsOf<K extends IpcKind>(kind: K, reader: ByteReader): DescriptorFields<K> {
  const fields: Record<string, unknown> = { kind, ...readExporter(reader) };
  readAll(reader, codedFields[kind], fields);
  return Object.freeze(fields) as DescriptorFields<K>;
}

function readHostFields<K extends HostKind>(kind: K, reader: ByteReader): HostFields {
  const fields: Record<string, unknown> = { kind };
  readAll(reader, codedHostFields[kind], fields);
  expectEnd(reader);
  return Object.freeze(fields) as unknown as HostFields;
}

/** @throws IpcError if bytes are left */
function expectEnd(reader: ByteReader): void {
  if (reader.remaining > 0) throw malformed(`${reader.remaining} bytes follow its end`);
}

function writeAll(writer: ByteWriter, fields: readonly CodedField[], from: object): void {
  const values = from as Readonly<Record<string, unknown>>;
  for (const { name, codec } of fields) codec.write(writer, values[name] as never);
}

function readAll(
  reader: ByteReader,
  fields: readonly CodedField[],
  into: Record<string, unknown>,
): void {
  for (const { name, codec } of fields) {
    const value = codec.read(reader, name);
    if (value !== undefined) into[name] = value;
  }
}

interface CodedExporter {
  readonly exporter: IpcExporter;
  readonly bytes: Buffer;
}

/** Consecutive descriptors usually come from the same process. */
let lastWritten: CodedExporter | undefined;
let lastRead: CodedExporter | undefined;

function writeExporter(writer: ByteWriter, exporter: IpcExporter): void {
  if (!lastWritten || !isSameExporter(lastWritten.exporter, exporter)) {
    const { device, machine, pid, startTime, pidNamespace } = exporter;
    const bytes = ByteWriter.use(0, (own) => {
      writeAll(own, codedExporter, exporter);
      return Buffer.from(own.written);
    });
    lastWritten = { exporter: { device, machine, pid, startTime, pidNamespace }, bytes };
  }
  writer.bytes(lastWritten.bytes);
}

const isSameExporter = (a: IpcExporter, b: IpcExporter): boolean =>
  a.device === b.device &&
  a.machine === b.machine &&
  a.pid === b.pid &&
  a.startTime === b.startTime &&
  a.pidNamespace === b.pidNamespace;

function readExporter(reader: ByteReader): IpcExporter {
  const view = reader.view(EXPORTER_BYTE_LENGTH);
  if (lastRead?.bytes.equals(view)) return lastRead.exporter;
  const fields: Record<string, unknown> = {};
  readAll(new ByteReader(view, malformed), codedExporter, fields);
  lastRead = { exporter: fields as unknown as IpcExporter, bytes: Buffer.from(view) };
  return lastRead.exporter;
}

/** A prefix byte and a UUID, a UUID, a number of four bytes and two of eight. */
const EXPORTER_BYTE_LENGTH = 1 + 16 + 16 + 4 + 8 + 8;

// ---- The codecs of the types of fields ----

interface Codec<T> {
  write(writer: ByteWriter, value: T): void;
  read(reader: ByteReader, name: string): unknown;
}

/** Reads a byte. @throws IpcError for one that is not below `count` */
function numberBelow(count: number, reader: ByteReader, name: string): number {
  const value = reader.uint8();
  if (value >= count) throw malformed(`${name}: ${value} is not below ${count}`);
  return value;
}

const isUint32 = (type: NumberType): boolean => NUMBERS[type][1] === 0xffff_ffff;

function readNumber(type: NumberType, reader: ByteReader, name: string): number {
  const [least, most] = NUMBERS[type];
  const value = isUint32(type) ? reader.uint32() : reader.int64();
  if (value < least || value > most)
    throw malformed(`${name}: ${value} is not from ${least} to ${most}`);
  return value;
}

const readNumbers = (
  type: NumberType,
  count: number,
  reader: ByteReader,
  name: string,
): readonly number[] =>
  Object.freeze(Array.from({ length: count }, () => readNumber(type, reader, name)));

const number = (type: NumberType): Codec<number> => ({
  write: isUint32(type)
    ? (writer, value) => writer.uint32(value)
    : (writer, value) => writer.int64(value),
  read: (reader, name) => readNumber(type, reader, name),
});

const uuid: Codec<string> = {
  write: (writer, value) => writer.text(value.replaceAll('-', ''), 'hex', 16),
  read: (reader) =>
    reader.text('hex', 16).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5'),
};

const handle: Codec<string> = {
  write: (writer, value) => writer.text(value, 'base64', CU_IPC_HANDLE_SIZE),
  read: (reader) => reader.text('base64', CU_IPC_HANDLE_SIZE),
};

const codecs: { readonly [T in HostField[1]]: Codec<never> } = {
  uint32: number('uint32'),
  positive32: number('positive32'),
  size: number('size'),
  positive: number('positive'),
  access: {
    write: (writer, value: (typeof ACCESS)[number]) => writer.uint8(ACCESS.indexOf(value)),
    read: (reader, name) => ACCESS[numberBelow(ACCESS.length, reader, name)],
  },
  device: {
    write: (writer, value: string) => {
      writer.uint8(DEVICE_PREFIXES.findIndex((prefix) => value.startsWith(prefix)));
      uuid.write(writer, value.slice(4));
    },
    read: (reader, name) =>
      `${DEVICE_PREFIXES[numberBelow(DEVICE_PREFIXES.length, reader, name)]}${uuid.read(reader, name)}`,
  },
  'event?': {
    write: (writer, value: DescriptorFields<'event'> | undefined) => {
      writer.uint8(value ? 1 : 0);
      if (value) writeFields(writer, value);
    },
    read: (reader, name) =>
      numberBelow(2, reader, name) === 0 ? undefined : readFieldsOf('event', reader),
  },
  handle,
  'handle?': {
    write: (writer, value: string | null) => {
      writer.uint8(value === null ? 0 : 1);
      if (value !== null) handle.write(writer, value);
    },
    read: (reader, name) => (numberBelow(2, reader, name) === 0 ? null : handle.read(reader, name)),
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
      for (const length of value.shape) writer.int64(length);
      for (const stride of value.strides) writer.int64(stride);
    },
    read: (reader, name) => {
      const length = reader.uint8();
      if (length === 0) return undefined;
      const dtype = reader.text('latin1', length);
      if (!DTYPE_NAME.test(dtype)) throw malformed(`${name}: that is not the name of a dtype`);
      const ndim = numberBelow(MAX_NDIM + 1, reader, name);
      const shape = readNumbers('size', ndim, reader, name);
      return Object.freeze({ dtype, shape, strides: readNumbers('stride', ndim, reader, name) });
    },
  },
  pieces: {
    write: (writer, value: readonly number[]) => {
      writer.uint8(value.length);
      for (const byteLength of value) writer.int64(byteLength);
    },
    read: (reader, name) => {
      const count = numberBelow(MAX_PIECES + 1, reader, name);
      if (count === 0) throw malformed(`${name}: the list is empty`);
      return readNumbers('positive', count, reader, name);
    },
  },
  uuid,
  virtual: {
    write: (writer, value: DescriptorFields<'virtual'>) => writeFields(writer, value),
    read: (reader) => {
      const fields = readFieldsOf('virtual', reader);
      checkConsistency(fields);
      return fields;
    },
  },
} as { readonly [T in HostField[1]]: Codec<never> };

interface CodedField {
  readonly name: string;
  readonly codec: Codec<never>;
}

/**
 * Fields with their codecs. They are looked up once, because most descriptors are read only once.
 */
const withCodecs = (fields: readonly HostField[]): readonly CodedField[] =>
  fields.map(([name, type]) => ({ name, codec: codecs[type] }));

const codedExporter = withCodecs(exporterFields);
const codedFields: Readonly<Record<IpcKind, readonly CodedField[]>> = {
  legacy: withCodecs(descriptorFields.legacy),
  pool: withCodecs(descriptorFields.pool),
  virtual: withCodecs(descriptorFields.virtual),
  event: withCodecs(descriptorFields.event),
};
const hostKinds = Object.keys(hostFields) as readonly HostKind[];
const codedHostFields: Readonly<Record<HostKind, readonly CodedField[]>> = {
  timeline: withCodecs(hostFields.timeline),
  signaler: withCodecs(hostFields.signaler),
  pinned: withCodecs(hostFields.pinned),
  channel: withCodecs(hostFields.channel),
};
