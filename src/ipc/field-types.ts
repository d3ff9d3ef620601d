/** How the fields of descriptors are written, read and checked, in bytes and in messages. */
import { formatValue } from '../validate.ts';
import type { ByteReader, ByteWriter } from './bytes.ts';
import type { IpcLayout } from './descriptor.ts';
import {
  ACCESS,
  DEVICE_PREFIXES,
  HANDLE_BYTE_LENGTH,
  ID_BYTE_LENGTH,
  MAX_AXES,
  NUMBERS,
  PACKET_FDS,
} from './protocol.ts';

/** A field that is not valid, in words that begin with its name. */
export class InvalidField extends Error {}

/** The name of an unknown property, which another process may have chosen. */
export const printableName = (name: string): string =>
  /^\w{1,40}$/.test(name) ? name : formatValue(name.slice(0, 40));

/** How a field is written, read and checked. All that read or check throw {@link InvalidField}. */
export interface FieldType<T> {
  write(writer: ByteWriter, value: T): void;
  /** Undefined for a field that is absent. */
  read(reader: ByteReader, name: string): unknown;
  /** Returns the value of a message, or a copy of it. */
  check(value: unknown, name: string): unknown;
}

export const refuse = (name: string, rule: string, value: unknown): never => {
  throw new InvalidField(
    value === undefined
      ? `${name} is missing`
      : `${name} must be ${rule}, not ${formatValue(value)}`,
  );
};

/** Reads a byte: the number of a name. */
export function nameAt<T>(names: readonly T[], reader: ByteReader, name: string): T {
  const value = reader.uint8();
  if (value >= names.length)
    throw new InvalidField(`${name}: ${value} is not below ${names.length}`);
  return names[value] as T;
}

function readCount(most: number, reader: ByteReader, name: string): number {
  const count = reader.uint8();
  if (count > most) throw new InvalidField(`${name}: ${count} is above ${most}`);
  return count;
}

export const isPresent = (reader: ByteReader, name: string): boolean =>
  readCount(1, reader, name) === 1;

function numberType(of: keyof typeof NUMBERS): FieldType<number> {
  const [byteLength, least, most] = NUMBERS[of];
  const check = (value: unknown, name: string): number =>
    typeof value === 'number' && Number.isSafeInteger(value) && value >= least && value <= most
      ? value
      : refuse(name, `an integer from ${least} to ${most}`, value);
  return byteLength === 4
    ? {
        write: (writer, value) => writer.uint32(value),
        read: (reader, name) => check(reader.uint32(), name),
        check,
      }
    : {
        write: (writer, value) => writer.int64(value),
        read: (reader, name) => check(reader.int64(), name),
        check,
      };
}

/** Bytes that are text in a message. */
const textType = (
  byteLength: number,
  encoding: 'base64' | 'hex',
  pattern: RegExp,
  rule: string,
): FieldType<string> => ({
  write: (writer, value) => writer.text(value.replaceAll('-', ''), encoding, byteLength),
  read: (reader) => reader.text(encoding, byteLength),
  check: (value, name) =>
    typeof value === 'string' && pattern.test(value) ? value : refuse(name, rule, value),
});

const numbers = (
  value: unknown,
  type: FieldType<number>,
  most: number,
  name: string,
): readonly number[] => {
  if (!Array.isArray(value) || value.length > most)
    return refuse(name, `an array of up to ${most} integers`, value);
  // A hole is an item, too: map would leave it out.
  return Array.from(value, (item, index) => type.check(item, `${name}[${index}]`) as number);
};

const readNumbers = (
  count: number,
  type: FieldType<number>,
  reader: ByteReader,
  name: string,
): readonly number[] =>
  Object.freeze(Array.from({ length: count }, () => type.read(reader, name) as number));

const size = numberType('size');
const positive = numberType('positive');
const stride = numberType('stride');

const UUID = '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}';
const uuid: FieldType<string> = {
  ...textType(ID_BYTE_LENGTH, 'hex', new RegExp(`^${UUID}$`), 'a boot id'),
  read: (reader) =>
    reader
      .text('hex', ID_BYTE_LENGTH)
      .replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5'),
};

/** The length of a handle in base64. */
const HANDLE_TEXT_LENGTH = 4 * Math.ceil(HANDLE_BYTE_LENGTH / 3);
const handle: FieldType<string> = {
  write: (writer, value) => writer.text(value, 'base64', HANDLE_BYTE_LENGTH),
  read: (reader) => reader.text('base64', HANDLE_BYTE_LENGTH),
  check: (value, name) =>
    typeof value === 'string' && isHandleText(value)
      ? value
      : refuse(name, `${HANDLE_BYTE_LENGTH} bytes in base64`, value),
};

function isHandleText(text: string): boolean {
  if (text.length !== HANDLE_TEXT_LENGTH) return false;
  const bytes = Buffer.from(text, 'base64');
  return bytes.byteLength === HANDLE_BYTE_LENGTH && bytes.toString('base64') === text;
}

const DTYPE_NAME = /^(V[0-9]{1,10}|[a-z0-9_]{1,16})$/;

function checkLayout(value: unknown, name: string): IpcLayout | undefined {
  if (value === undefined) return undefined;
  if (typeof value !== 'object' || value === null)
    return refuse(name, 'the layout of an array', value);
  const { dtype, shape, strides, ...others } = value as Record<string, unknown>;
  const [unknown] = Object.keys(others);
  if (unknown !== undefined)
    throw new InvalidField(`${name}.${printableName(unknown)} is not a field of a layout`);
  const layout = {
    dtype:
      typeof dtype === 'string' && DTYPE_NAME.test(dtype)
        ? dtype
        : refuse(`${name}.dtype`, 'the name of a dtype', dtype),
    shape: numbers(shape, size, MAX_AXES, `${name}.shape`),
    strides: numbers(strides, stride, MAX_AXES, `${name}.strides`),
  };
  if (layout.shape.length !== layout.strides.length)
    throw new InvalidField(
      `${name}.strides has ${layout.strides.length} items, and the shape ${layout.shape.length}`,
    );
  return layout;
}

const access: FieldType<(typeof ACCESS)[number]> = {
  write: (writer, value) => writer.uint8(ACCESS.indexOf(value)),
  read: (reader, name) => nameAt(ACCESS, reader, name),
  check: (value, name) =>
    ACCESS.find((access) => access === value) ?? refuse(name, ACCESS.join(' or '), value),
};

const device: FieldType<string> = {
  write: (writer, value) => {
    writer.uint8(DEVICE_PREFIXES.findIndex((prefix) => value.startsWith(prefix)));
    uuid.write(writer, value.slice(4));
  },
  read: (reader, name) => `${nameAt(DEVICE_PREFIXES, reader, name)}${uuid.read(reader, name)}`,
  check: (value, name) =>
    typeof value === 'string' && new RegExp(`^(${DEVICE_PREFIXES.join('|')})${UUID}$`).test(value)
      ? value
      : refuse(name, 'the UUID of a GPU', value),
};

const optionalHandle: FieldType<string | null> = {
  write: (writer, value) => {
    writer.uint8(value === null ? 0 : 1);
    if (value !== null) handle.write(writer, value);
  },
  read: (reader, name) => (isPresent(reader, name) ? handle.read(reader, name) : null),
  check: (value, name) => (value === null ? null : handle.check(value, name)),
};

const optionalLayout: FieldType<IpcLayout | undefined> = {
  write: (writer, value) => {
    writer.uint8(value ? value.dtype.length : 0);
    if (!value) return;
    writer.text(value.dtype, 'latin1', value.dtype.length);
    writer.uint8(value.shape.length);
    for (const length of value.shape) writer.int64(length);
    for (const bytes of value.strides) writer.int64(bytes);
  },
  read: (reader, name) => {
    const length = reader.uint8();
    if (length === 0) return undefined;
    const dtype = reader.text('latin1', length);
    if (!DTYPE_NAME.test(dtype)) throw new InvalidField(`${name}: that is not the name of a dtype`);
    const ndim = readCount(MAX_AXES, reader, name);
    const shape = readNumbers(ndim, size, reader, name);
    return Object.freeze({ dtype, shape, strides: readNumbers(ndim, stride, reader, name) });
  },
  check: checkLayout,
};

const pieces: FieldType<readonly number[]> = {
  write: (writer, value) => {
    writer.uint8(value.length);
    for (const byteLength of value) writer.int64(byteLength);
  },
  read: (reader, name) => {
    const count = readCount(PACKET_FDS, reader, name);
    if (count === 0) throw new InvalidField(`${name}: the list is empty`);
    return readNumbers(count, positive, reader, name);
  },
  check: (value, name) => {
    const sizes = numbers(value, positive, PACKET_FDS, name);
    return sizes.length > 0 ? sizes : refuse(name, 'at least one size', value);
  },
};

/** The types of fields that have no descriptor in them, by their names in protocol.json. */
export const fieldTypes = {
  uint32: numberType('uint32'),
  positive32: numberType('positive32'),
  size,
  positive,
  access,
  device,
  handle,
  'handle?': optionalHandle,
  id: textType(ID_BYTE_LENGTH, 'hex', /^[0-9a-f]{32}$/, `${ID_BYTE_LENGTH} bytes in hex`),
  'layout?': optionalLayout,
  pieces,
  uuid,
};
