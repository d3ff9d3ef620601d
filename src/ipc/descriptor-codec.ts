/**
 * The descriptors that users get and pass on, as messages and as bytes, with a version and a
 * checksum.
 */

import { types } from 'node:util';
import { crc32 } from 'node:zlib';
import { CU_IPC_HANDLE_SIZE } from '../../ffi/constants.ts';
import { MAX_NDIM } from '../array/shape.ts';
import { IpcError } from '../errors.ts';
import { typedArrayKind } from '../typed-array.ts';
import { formatValue } from '../validate.ts';
import { ByteWriter } from './bytes.ts';
import {
  ACCESS,
  checkConsistency,
  DEVICE_PREFIXES,
  type DescriptorFields,
  DTYPE_NAME,
  descriptorFields,
  descriptorKinds,
  exporterFields,
  type Field,
  type FieldType,
  type IpcDescriptor,
  type IpcDescriptors,
  type IpcKind,
  invalidDescriptor,
  MAX_PIECES,
  NUMBERS,
  type NumberType,
} from './descriptor.ts';
import { descriptorReader, encodeFields, malformed, readFields } from './descriptor-bytes.ts';
import { loadZod } from './load-zod.ts';
import { PROTOCOL_VERSION, versionMismatch } from './version.ts';

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
  const fields = readFields(reader);
  if (checksumOf(bytes.subarray(begin)) !== checksum) throw corrupted(fields);
  checkConsistency(fields);
  const descriptor = withChecksum(fields);
  if ('readyEvent' in descriptor) Object.freeze(descriptor.readyEvent);
  validated.add(Object.freeze(descriptor));
  return descriptor;
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
  const { schemas, anyOf, prettify } = descriptorSchemas();
  const statedKind = (message as { readonly kind?: unknown } | null | undefined)?.kind;
  const kind = kinds.length === 1 ? kinds[0] : kinds.find((name) => name === statedKind);
  const result = (kind ? schemas[kind] : anyOf(kinds)).safeParse(message);
  if (!result.success) {
    const version = versionOf(message);
    if (version !== undefined && version !== PROTOCOL_VERSION) throw otherVersion(version);
    throw invalidDescriptor(
      kinds,
      hintFor(message, kinds) ?? prettify(result.error).slice(0, 1000),
    );
  }
  const descriptor = result.data as IpcDescriptor;
  verifyChecksum(descriptor);
  checkConsistency(descriptor);
  if (descriptor.kind !== 'event' && descriptor.readyEvent) verifyChecksum(descriptor.readyEvent);
  if (isDeeplyFrozen(message)) validated.add(message as object);
  return descriptor as IpcDescriptors[K];
}

// ---- The checksum ----

/** Precedes the version, the checksum and the encoded fields. */
const MAGIC = Buffer.from('cufd', 'latin1');

/** CRC-32 of the version: the start value of each checksum. */
const checksumSeed = crc32(Uint8Array.of(PROTOCOL_VERSION));

/**
 * CRC-32 of version and encoded fields. The driver does not detect every corrupted byte of a
 * handle. It maps some memory, and the first use of that memory destroys the context
 * (CUDA_ERROR_LAUNCH_FAILED, seen on an H200).
 */
const checksumOf = (encodedFields: Uint8Array): number => crc32(encodedFields, checksumSeed);

/** @throws IpcError for a wrong checksum */
function verifyChecksum(descriptor: IpcDescriptor): void {
  if (checksumOf(encodeFields(descriptor)) !== descriptor.checksum) throw corrupted(descriptor);
}

const corrupted = ({ kind, pid }: DescriptorFields): IpcError =>
  new IpcError(
    `this ${kind} descriptor of process ${pid} is corrupted: its checksum is wrong`,
    undefined,
    'corrupted',
  );

// ---- What a message must be ----

/** Frozen descriptors that were validated, which need no second check. */
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

const otherVersion = (version: number): IpcError =>
  versionMismatch(
    `the descriptor is of version ${version} of the protocol, this process speaks version ${PROTOCOL_VERSION}`,
  );

/** Returns the version that a message states, if it looks like a descriptor of any version. */
function versionOf(message: unknown): number | undefined {
  if (typeof message !== 'object' || message === null) return undefined;
  const { kind, version } = message as { readonly kind?: unknown; readonly version?: unknown };
  const isVersion = typeof version === 'number' && Number.isSafeInteger(version) && version >= 0;
  // A dictionary of the CUDA array interface has a version, too.
  return isVersion && typeof kind === 'string' ? version : undefined;
}

/** Returns what the caller probably did wrong, for common mistakes. */
function hintFor(message: unknown, kinds: readonly IpcKind[]): string | undefined {
  if (typeof message === 'string')
    return /^[A-Z]\w*\(/.test(message)
      ? 'it is the description of an object, not the object: send what getIpcHandle() returns, or the ' +
          'object with peer.send()'
      : 'it is text: JSON.parse it first';
  if (types.isPromise(message)) return 'it is a Promise: await it first';
  if (typeof message !== 'object' || message === null) return undefined;
  if ('descriptor' in message)
    return 'it contains one: pass its descriptor, and its fds as { fds }';
  const { kind } = message as { readonly kind?: unknown };
  if (kind === undefined)
    return 'it has no kind: pass all that getIpcHandle or exportIpc returned in the other process';
  const found = descriptorKinds.find((name) => name === kind);
  if (found === undefined || kinds.includes(found)) return undefined;
  return `it is one of kind ${found}: open it with ${found === 'event' ? 'openIpcEvent' : 'openIpcBuffer'}`;
}

/** The length of a handle in base64. */
const HANDLE_TEXT_LENGTH = 4 * Math.ceil(CU_IPC_HANDLE_SIZE / 3);

const createSchemas = () => {
  const z = loadZod();
  type Schema = import('./zod.ts').ZodType;
  const number = (type: NumberType): Schema => z.int().min(NUMBERS[type][0]).max(NUMBERS[type][1]);
  const uuid = '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}';
  const handle = z
    .string()
    .length(HANDLE_TEXT_LENGTH)
    .base64()
    .refine(
      (text) => Buffer.from(text, 'base64').byteLength === CU_IPC_HANDLE_SIZE,
      `must be ${CU_IPC_HANDLE_SIZE} bytes in base64`,
    );
  const layout = z
    .strictObject({
      dtype: z.string().regex(DTYPE_NAME, 'must be the name of a dtype'),
      shape: z.array(number('size')).max(MAX_NDIM),
      strides: z.array(number('stride')).max(MAX_NDIM),
    })
    .refine(
      ({ shape, strides }) => shape.length === strides.length,
      'must have a stride for each axis',
    );
  const types: Record<Exclude<FieldType, 'event?'>, Schema> = {
    uint32: number('uint32'),
    positive32: number('positive32'),
    size: number('size'),
    positive: number('positive'),
    access: z.enum(ACCESS),
    device: z
      .string()
      .regex(new RegExp(`^(${DEVICE_PREFIXES.join('|')})${uuid}$`), 'must be the UUID of a GPU'),
    handle,
    'handle?': handle.nullable(),
    id: z.string().regex(/^[0-9a-f]{32}$/, 'must be 16 bytes in hex'),
    'layout?': layout.optional(),
    pieces: z.array(number('positive')).min(1).max(MAX_PIECES),
    uuid: z.string().regex(new RegExp(`^${uuid}$`), 'must be a boot id'),
  };
  const kindOf = (kind: (typeof descriptorKinds)[number], event?: Schema): Schema => {
    const all: readonly Field[] = [...exporterFields, ...descriptorFields[kind]];
    const fields = all.map(([name, type]): readonly [string, Schema] => [
      name,
      type === 'event?' ? (event as Schema).optional() : types[type],
    ]);
    return z.strictObject({
      kind: z.literal(kind),
      version: z.literal(PROTOCOL_VERSION),
      checksum: number('uint32'),
      ...Object.fromEntries(fields),
    });
  };
  const event = kindOf('event');
  return {
    schemas: {
      legacy: kindOf('legacy', event),
      pool: kindOf('pool', event),
      virtual: kindOf('virtual', event),
      event,
    },
    /** For a message whose kind is not accepted. */
    anyOf: (kinds: readonly (typeof descriptorKinds)[number][]): Schema =>
      z.object({ kind: z.enum(kinds) }),
    prettify: z.prettifyError,
  };
};
let cachedSchemas: ReturnType<typeof createSchemas> | undefined;

/** The schemas of messages. The first call loads zod. */
const descriptorSchemas = (): ReturnType<typeof createSchemas> => {
  cachedSchemas ??= createSchemas();
  return cachedSchemas;
};
