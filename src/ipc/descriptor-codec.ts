/** Descriptors as messages and as bytes: parsed, checked, encoded and decoded. */

import { createRequire } from 'node:module';
import { CU_IPC_HANDLE_SIZE } from '../../ffi/constants.ts';
import { MAX_NDIM } from '../array/shape.ts';
import { IpcError } from '../errors.ts';
import {
  ACCESS,
  checkRange,
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
  type IpcKind,
  type IpcMemoryDescriptor,
  layoutOf,
  MAX_PIECES,
  NUMBERS,
  type NumberType,
} from './descriptor.ts';
import { checksumOf, corrupted, readDescriptor, writeDescriptor } from './descriptor-bytes.ts';

/**
 * Encodes a descriptor in its compact binary form, for sockets and shared memory. Most take 120 to
 * 250 bytes.
 *
 * @throws IpcError if it is not a valid descriptor
 */
export const encodeDescriptor = (descriptor: IpcDescriptor): Uint8Array =>
  new Uint8Array(writeDescriptor(parseDescriptor(descriptor)));

/**
 * Decodes the bytes that {@link encodeDescriptor} returned.
 *
 * @throws IpcError for any other bytes
 */
export const decodeDescriptor = (bytes: Uint8Array): IpcDescriptor =>
  checkDecoded(readDescriptor(bytes));

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
  if (!result.success)
    throw invalidDescriptor(kinds, hintFor(message) ?? prettify(result.error).slice(0, 1000));
  const descriptor = result.data as IpcDescriptors[K];
  if (checksumOf(descriptor) !== descriptor.checksum) throw corrupted(descriptor);
  if (descriptor.kind !== 'event') checkMemory(descriptor as IpcMemoryDescriptor);
  if (isDeeplyFrozen(message)) validated.add(message as object);
  return descriptor;
}

// ---- What a descriptor must be ----

/**
 * Frozen descriptors that were validated. A connection that receives one again does not parse it
 * again.
 */
const validated = new WeakSet<object>();

/**
 * Checks that the fields of a decoded descriptor are consistent, and marks it as validated. Its
 * fields are within bounds, it is frozen, and its checksum is right.
 *
 * @throws IpcError for inconsistent fields
 */
function checkDecoded(descriptor: IpcDescriptor): IpcDescriptor {
  if (descriptor.kind !== 'event') checkMemory(descriptor);
  validated.add(descriptor);
  return descriptor;
}

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

function checkMemory(descriptor: IpcMemoryDescriptor): void {
  const { readyEvent } = descriptor;
  const inconsistency = inconsistencyIn(descriptor);
  if (inconsistency) throw invalidDescriptor([descriptor.kind], inconsistency);
  checkRange(descriptor);
  layoutOf(descriptor);
  if (readyEvent && checksumOf(readyEvent) !== readyEvent.checksum) throw corrupted(readyEvent);
}

/** Returns why fields that are valid one by one are inconsistent. */
function inconsistencyIn(descriptor: IpcMemoryDescriptor): string | undefined {
  if (descriptor.kind === 'pool') {
    const { handle, byteLength, baseByteLength, layout, readyEvent } = descriptor;
    const isConsistent =
      handle === null ? baseByteLength === 0 && !layout && !readyEvent : byteLength > 0;
    return isConsistent
      ? undefined
      : 'the pool itself has size 0, and memory of the pool has a size above 0';
  }
  if (descriptor.kind !== 'virtual') return undefined;
  const sum = descriptor.pieces.reduce((total, piece) => total + piece, 0);
  return sum === descriptor.baseByteLength ? undefined : 'the pieces must add up to baseByteLength';
}

/** Returns what the caller probably did wrong, for common mistakes. */
function hintFor(message: unknown): string | undefined {
  if (typeof message === 'string') return 'it is text: JSON.parse it first';
  if (message instanceof Promise) return 'it is a Promise: await it first';
  const isExported = typeof message === 'object' && message !== null && 'descriptor' in message;
  return isExported ? 'it contains one: pass its descriptor, and its fds as { fds }' : undefined;
}

const invalidDescriptor = (kinds: readonly IpcKind[], why: string): IpcError =>
  new IpcError(
    `this is not a cuffi descriptor of kind ${kinds.join(' or ')}:\n${why}`,
    undefined,
    'invalid-descriptor',
  );

/** The length of a handle in base64. */
const HANDLE_TEXT_LENGTH = 4 * Math.ceil(CU_IPC_HANDLE_SIZE / 3);

const createSchemas = () => {
  const { z } = loadZod();
  type Schema = import('zod').ZodType;
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
      version: z.literal(DESCRIPTOR_VERSION),
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

/**
 * Loads zod, which takes longer to load than all of cuffi. The first message that is checked loads
 * it, always through this function.
 */
export const loadZod = (): typeof import('zod') =>
  createRequire(import.meta.url)('zod') as typeof import('zod');
