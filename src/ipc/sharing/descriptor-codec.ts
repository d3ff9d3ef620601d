/**
 * Descriptors as bytes, as connections send them, and as messages, as programs pass them on. Both
 * forms follow the lists of fields in protocol.ts, and are checked as strictly.
 */

import { types as is } from 'node:util';
import { crc32 } from 'node:zlib';
import { IpcError } from '../../errors.ts';
import { typedArrayKind } from '../../typed-array.ts';
import { formatValue } from '../../validate.ts';
import { ByteReader, ByteWriter } from '../bytes.ts';
import {
  type AnyFields,
  type DescriptorFields,
  type HostKind,
  type IpcDescriptor,
  type IpcDescriptors,
  type IpcExporter,
  type IpcKind,
  invalidDescriptor,
  isHostFields,
} from '../descriptor.ts';
import {
  type FieldType,
  fieldTypes,
  InvalidField,
  isPresent,
  nameAt,
  printableName,
  refuse,
} from '../field-types.ts';
import {
  DESCRIPTOR_MAGIC,
  descriptorFields,
  exporterFields,
  hostFields,
  MAX_OBJECT_BYTE_LENGTH,
  objectKinds,
} from '../protocol.ts';
import { PROTOCOL_VERSION, versionMismatch } from '../version.ts';
import type { DescribedKind } from './kind.ts';
import { kindOfFields, kinds as shared } from './kinds.ts';

// ---- Messages ----

/** Returns the descriptor with these fields: adds the version and the checksum. */
export function withChecksum<F extends DescriptorFields>(fields: F): IpcDescriptors[F['kind']] {
  const { readyEvent } = fields as { readonly readyEvent?: DescriptorFields<'event'> };
  return {
    ...fields,
    ...(readyEvent && { readyEvent: withChecksum(readyEvent) }),
    version: PROTOCOL_VERSION,
    checksum: checksumOf(encodeFields(fields)),
  } as unknown as IpcDescriptors[F['kind']];
}

/**
 * Parses a message as a descriptor.
 *
 * @param kinds the accepted kinds; all by default
 * @throws IpcError that names the invalid field
 */
export function parseDescriptor<K extends IpcKind = IpcKind>(
  message: unknown,
  kinds: readonly K[] = descriptorKinds as readonly K[],
): IpcDescriptors[K] {
  if (isValidated(message) && kinds.includes(message.kind as K))
    return message as IpcDescriptors[K];
  let descriptor: IpcDescriptor;
  try {
    descriptor = readMessage(message, kinds);
  } catch (error) {
    if (!(error instanceof InvalidField)) throw error;
    throw invalidDescriptor(kinds, error.message);
  }
  checkFields(descriptor);
  if (isDeeplyFrozen(message)) validated.add(message as object);
  return descriptor as IpcDescriptors[K];
}

/** Reads each property once: a getter may return another value the next time. */
function readMessage(message: unknown, kinds: readonly IpcKind[], at = ''): IpcDescriptor {
  const hint = hintFor(message, kinds);
  if (hint !== undefined) throw new InvalidField(hint);
  const given = message as Readonly<Record<string, unknown>>;
  const { kind, version, checksum } = given;
  const isOfAnyVersion =
    typeof version === 'number' && Number.isSafeInteger(version) && version >= 0;
  // A dictionary of the CUDA array interface has a version, too.
  if (typeof kind === 'string' && isOfAnyVersion && version !== PROTOCOL_VERSION)
    throw otherVersion(version);
  const known = kinds.find((name) => name === kind);
  if (known === undefined)
    throw new InvalidField(`${at}kind must be ${kinds.join(' or ')}, not ${formatValue(kind)}`);
  const fields = [...coded.exporter, ...coded[known]];
  const unknown = Object.keys(given).find(
    (name) => !STATED.includes(name) && !fields.some((field) => field.name === name),
  );
  if (unknown !== undefined)
    throw new InvalidField(
      `${at}${printableName(unknown)} is not a field of a descriptor of kind ${known}`,
    );
  if (version !== PROTOCOL_VERSION)
    throw new InvalidField(`${at}version must be ${PROTOCOL_VERSION}, not ${formatValue(version)}`);
  const read: Record<string, unknown> = { kind, version };
  read['checksum'] = types.uint32.check(checksum, `${at}checksum`);
  for (const { name, type } of fields) {
    const value = type.check(given[name], at + name);
    if (value !== undefined || name in given) read[name] = value;
  }
  const descriptor = read as unknown as IpcDescriptor;
  if (checksumOf(encodeFields(descriptor)) !== checksum) throw corrupted(descriptor);
  return descriptor;
}

/** What every descriptor has besides the fields of its exporter and its kind. */
const STATED = ['kind', 'version', 'checksum'];

/** Returns what the caller probably did wrong, for common mistakes and for values that are not objects. */
function hintFor(message: unknown, kinds: readonly IpcKind[]): string | undefined {
  if (typeof message === 'string')
    return /^[A-Z]\w*\(/.test(message)
      ? 'it is the description of an object, not the object: send what getIpcHandle() returns, or the ' +
          'object with peer.send()'
      : 'it is text: JSON.parse it first';
  if (is.isPromise(message)) return 'it is a Promise: await it first';
  if (typeof message !== 'object' || message === null || Array.isArray(message))
    return `it is ${formatValue(message)}`;
  if ('descriptor' in message)
    return 'it contains one: pass its descriptor, and its fds as { fds }';
  const { kind } = message as { readonly kind?: unknown };
  if (kind === undefined)
    return 'it has no kind: pass all that getIpcHandle or exportIpc returned in the other process';
  const found = descriptorKinds.find((name) => name === kind);
  if (found === undefined || kinds.includes(found)) return undefined;
  const { opener } = shared.find(({ name }) => name === found) as DescribedKind;
  return `it is one of kind ${found}: open it with ${opener}`;
}

// ---- Bytes with a version and a checksum ----

/**
 * Encodes a descriptor in its compact binary form, for sockets and shared memory. Most take 120 to
 * 250 bytes.
 *
 * @throws IpcError if it is not a valid descriptor
 */
export function encodeDescriptor(descriptor: IpcDescriptor): Uint8Array<ArrayBuffer> {
  const fields = encodeFields(parseDescriptor(descriptor));
  return ByteWriter.use(0, (writer) => {
    writer.bytes(MAGIC);
    writer.uint8(PROTOCOL_VERSION);
    writer.uint32(checksumOf(fields));
    writer.bytes(fields);
    return new Uint8Array(writer.written);
  });
}

/**
 * Decodes the bytes that {@link encodeDescriptor} returned.
 *
 * @throws IpcError for any other bytes
 */
export function decodeDescriptor(bytes: Uint8Array): IpcDescriptor {
  if (typedArrayKind(bytes) !== 'Uint8Array')
    throw new TypeError(
      `bytes must be the Uint8Array of encodeDescriptor, not ${formatValue(bytes)}`,
    );
  const reader = descriptorReader(bytes);
  if (!reader.view(MAGIC.byteLength).equals(MAGIC)) throw malformed('wrong magic number');
  const version = reader.uint8();
  if (version !== PROTOCOL_VERSION) throw otherVersion(version);
  const checksum = reader.uint32();
  const begin = reader.offset;
  const fields = readToEnd(reader, descriptorKinds);
  if (checksumOf(bytes.subarray(begin)) !== checksum) throw corrupted(fields);
  checkFields(fields);
  const descriptor = withChecksum(fields);
  if ('readyEvent' in descriptor) Object.freeze(descriptor.readyEvent);
  validated.add(Object.freeze(descriptor));
  return descriptor;
}

// ---- Bytes of connections: the fields alone, as the kernel corrupts no byte ----

/** Encodes fields that are known to be valid. */
export const encodeFields = (fields: AnyFields): Buffer =>
  ByteWriter.use(0, (writer) => {
    writer.uint8(objectKinds.indexOf(fields.kind));
    if (isHostFields(fields)) writeAll(writer, coded[fields.kind], fields);
    else writeFields(writer, fields);
    return Buffer.from(writer.written);
  });

/**
 * Decodes the bytes that {@link encodeFields} returned. The fields are checked and frozen.
 *
 * @throws IpcError for any other bytes
 */
export function decodeFields(bytes: Uint8Array): AnyFields {
  const fields = readToEnd(descriptorReader(bytes), objectKinds);
  checkFields(fields);
  return fields;
}

/** @throws IpcError for fields that are valid one by one but inconsistent */
const checkFields = (fields: AnyFields): void => kindOfFields(fields).check?.(fields);

/** Returns a reader whose errors say that the bytes are not a descriptor. @throws IpcError */
function descriptorReader(bytes: Uint8Array): ByteReader {
  if (bytes.byteLength > MAX_OBJECT_BYTE_LENGTH)
    throw malformed(
      `${bytes.byteLength} bytes are too many: at most ${MAX_OBJECT_BYTE_LENGTH} are allowed`,
    );
  return new ByteReader(bytes, malformed);
}

/**
 * Reads the fields of one of some kinds, to the end of the bytes. They may still be inconsistent.
 *
 * @throws IpcError for any other bytes
 */
function readToEnd<K extends IpcKind | HostKind>(
  reader: ByteReader,
  kinds: readonly K[],
): FieldsOf<K> {
  try {
    const fields = readFields(nameAt(kinds, reader, 'kind'), reader);
    if (reader.remaining > 0) throw malformed(`${reader.remaining} bytes follow its end`);
    return fields;
  } catch (error) {
    throw error instanceof InvalidField ? malformed(error.message) : error;
  }
}

const malformed = (why: string): IpcError =>
  new IpcError(`these bytes are not a cuffi descriptor: ${why}`, undefined, 'invalid-descriptor');

function writeFields(writer: ByteWriter, fields: DescriptorFields): void {
  writeExporter(writer, fields);
  writeAll(writer, coded[fields.kind], fields);
}

function readFields<K extends IpcKind | HostKind>(kind: K, reader: ByteReader): FieldsOf<K> {
  const exporter = kind in hostFields ? undefined : readExporter(reader);
  const fields: Record<string, unknown> = { kind, ...exporter };
  readAll(reader, coded[kind], fields);
  return Object.freeze(fields) as unknown as FieldsOf<K>;
}

/** The fields of a kind. */
type FieldsOf<K extends IpcKind | HostKind> = Extract<AnyFields, { readonly kind: K }>;

function writeAll(writer: ByteWriter, fields: readonly CodedField[], from: object): void {
  const values = from as Readonly<Record<string, unknown>>;
  for (const { name, type } of fields) type.write(writer, values[name] as never);
}

function readAll(
  reader: ByteReader,
  fields: readonly CodedField[],
  into: Record<string, unknown>,
): void {
  for (const { name, type } of fields) {
    const value = type.read(reader, name);
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
      writeAll(own, coded.exporter, exporter);
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
  const known = lastRead;
  if (known && reader.remaining >= known.bytes.byteLength) {
    const view = reader.peek(known.bytes.byteLength);
    if (known.bytes.equals(view)) {
      reader.skip(view.byteLength);
      return known.exporter;
    }
  }
  const begin = reader.offset;
  const fields: Record<string, unknown> = {};
  readAll(reader, coded.exporter, fields);
  const exporter = fields as unknown as IpcExporter;
  lastRead = { exporter, bytes: Buffer.from(reader.since(begin)) };
  return exporter;
}

// ---- The fields of each kind ----

/** The types of fields, with those that are descriptors themselves. */
const types = {
  ...fieldTypes,
  'event?': {
    write: (writer, value) => {
      writer.uint8(value ? 1 : 0);
      if (value) writeFields(writer, value);
    },
    read: (reader, name) => (isPresent(reader, name) ? readFields('event', reader) : undefined),
    check: (value, name) =>
      value === undefined ? undefined : readMessage(value, ['event'], `${name}.`),
  } satisfies FieldType<DescriptorFields<'event'> | undefined>,
  virtual: {
    write: (writer, value) => writeFields(writer, value),
    read: (reader) => {
      const fields = readFields('virtual', reader);
      checkFields(fields);
      return fields;
    },
    // A part of what only connections send.
    check: (value, name) => refuse(name, 'sent over a connection', value),
  } satisfies FieldType<DescriptorFields<'virtual'>>,
};

interface CodedField {
  readonly name: string;
  readonly type: FieldType<never>;
}

/** Fields with their types. They are looked up once, because most descriptors are read only once. */
const withTypes = (fields: readonly (readonly [string, keyof typeof types])[]): CodedField[] =>
  fields.map(([name, type]) => ({ name, type: types[type] as FieldType<never> }));

const coded = Object.fromEntries(
  Object.entries({ exporter: exporterFields, ...descriptorFields, ...hostFields }).map(
    ([name, fields]) => [name, withTypes(fields)],
  ),
) as Record<string, readonly CodedField[]> as Readonly<
  Record<IpcKind | HostKind | 'exporter', readonly CodedField[]>
>;

/** The kinds that have a form as a message. The index is their number. */
const descriptorKinds = Object.keys(descriptorFields) as readonly IpcKind[];

// ---- The checksum ----

/** Precedes the version, the checksum and the encoded fields. */
const MAGIC = Buffer.from(DESCRIPTOR_MAGIC, 'latin1');

/** CRC-32 of the version: the start value of each checksum. */
const checksumSeed = crc32(Uint8Array.of(PROTOCOL_VERSION));

/**
 * CRC-32 of version and encoded fields. The driver does not detect every corrupted byte of a
 * handle. It maps some memory, and the first use of that memory destroys the context
 * (CUDA_ERROR_LAUNCH_FAILED, seen on an H200).
 */
const checksumOf = (encodedFields: Uint8Array): number => crc32(encodedFields, checksumSeed);

const corrupted = ({ kind, pid }: DescriptorFields): IpcError =>
  new IpcError(
    `this ${kind} descriptor of process ${pid} is corrupted: its checksum is wrong`,
    undefined,
    'corrupted',
  );

const otherVersion = (version: number): IpcError =>
  versionMismatch(
    `the descriptor uses version ${version} of the protocol, but this process speaks version ${PROTOCOL_VERSION}`,
    version > PROTOCOL_VERSION,
  );

// ---- What needs no second check ----

/** Frozen descriptors that were validated. */
const validated = new WeakSet<object>();

const isValidated = (message: unknown): message is IpcDescriptor =>
  typeof message === 'object' && message !== null && validated.has(message);

/**
 * Whether the value can never change. Anything mutable is checked each time: a getter may return
 * different values, and a prototype of the caller's may be modified.
 */
function isDeeplyFrozen(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return true;
  const prototype: unknown = Object.getPrototypeOf(value);
  const isPlain =
    prototype === Object.prototype || prototype === Array.prototype || prototype === null;
  return (
    isPlain &&
    Object.isFrozen(value) &&
    Object.values(Object.getOwnPropertyDescriptors(value)).every(
      (property) => property.get === undefined && isDeeplyFrozen(property.value),
    )
  );
}
