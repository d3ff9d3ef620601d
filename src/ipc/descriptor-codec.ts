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
 * A descriptor in its compact form, for sockets and shared memory: 120 to 250 bytes for most.
 *
 * @throws IpcError for anything but a sound descriptor
 */
export const encodeDescriptor = (descriptor: IpcDescriptor): Uint8Array =>
  new Uint8Array(writeDescriptor(parseDescriptor(descriptor)));

/**
 * The descriptor that {@link encodeDescriptor} made these bytes of.
 *
 * @throws IpcError for anything else
 */
export const decodeDescriptor = (bytes: Uint8Array): IpcDescriptor =>
  checkDecoded(readDescriptor(bytes));

/**
 * A message as the descriptor that it should be.
 *
 * @param kinds the kinds that it may be of; all by default
 * @throws IpcError that names what is wrong
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

/** Constant ones that were found sound: what comes again through a connection is not read anew. */
const validated = new WeakSet<object>();

/**
 * A constant descriptor whose fields are what they may be and whose checksum is right.
 *
 * @throws IpcError for fields that do not go together
 */
function checkDecoded(descriptor: IpcDescriptor): IpcDescriptor {
  if (descriptor.kind !== 'event') checkMemory(descriptor);
  validated.add(descriptor);
  return descriptor;
}

const isValidated = (message: unknown): message is IpcDescriptor =>
  typeof message === 'object' && message !== null && validated.has(message);

/**
 * Whether it stays as it is; what can still be changed is checked each time. A getter may answer
 * differently whenever it is asked, a prototype of the caller's own may be changed.
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

/** What does not go together in a descriptor, each field of which is what it may be. */
function inconsistencyIn(descriptor: IpcMemoryDescriptor): string | undefined {
  if (descriptor.kind === 'pool') {
    const { handle, byteLength, baseByteLength, layout, readyEvent } = descriptor;
    const isConsistent =
      handle === null ? baseByteLength === 0 && !layout && !readyEvent : byteLength > 0;
    return isConsistent ? undefined : 'sizes are for memory of the pool, and 0 for the pool itself';
  }
  if (descriptor.kind !== 'virtual') return undefined;
  const sum = descriptor.pieces.reduce((total, piece) => total + piece, 0);
  return sum === descriptor.baseByteLength ? undefined : 'the pieces must add up to baseByteLength';
}

/** What is likely meant by something that is no descriptor. */
function hintFor(message: unknown): string | undefined {
  if (typeof message === 'string') return 'it is text: JSON.parse it first';
  if (message instanceof Promise) return 'it is a Promise: await it first';
  const isExported = typeof message === 'object' && message !== null && 'descriptor' in message;
  return isExported ? 'it has one: give its descriptor, and its fds as { fds }' : undefined;
}

const invalidDescriptor = (kinds: readonly IpcKind[], why: string): IpcError =>
  new IpcError(
    `this is no ${kinds.join(' or ')} descriptor of cuffi:\n${why}`,
    undefined,
    'invalid-descriptor',
  );

/** Of the handle's bytes in base64. */
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
    .refine(({ shape, strides }) => shape.length === strides.length, 'a stride for each axis');
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
    /** For a message that says none of these kinds. */
    anyOf: (kinds: readonly (typeof descriptorKinds)[number][]): Schema =>
      z.object({ kind: z.enum(kinds) }),
    prettify: z.prettifyError,
  };
};
let cachedSchemas: ReturnType<typeof createSchemas> | undefined;

/** What the fields of a message must be; zod is loaded by the first call. */
const descriptorSchemas = (): ReturnType<typeof createSchemas> => {
  cachedSchemas ??= createSchemas();
  return cachedSchemas;
};

/**
 * zod takes longer to load than all of cuffi: it is loaded when the first message is checked, and
 * through this one function, so that it is loaded once.
 */
export const loadZod = (): typeof import('zod') =>
  createRequire(import.meta.url)('zod') as typeof import('zod');
