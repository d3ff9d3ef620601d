import { CU_IPC_HANDLE_SIZE } from '../../ffi/constants.ts';
import { MAX_NDIM } from '../array/shape.ts';
import {
  ACCESS,
  DESCRIPTOR_VERSION,
  DEVICE_PREFIXES,
  DTYPE_NAME,
  descriptorFields,
  type descriptorKinds,
  exporterFields,
  type Field,
  type FieldType,
  MAX_PIECES,
  NUMBERS,
  type NumberType,
} from './descriptor-fields.ts';
import { loadZod } from './zod.ts';

/** Of the handle's bytes in base64. */
const HANDLE_TEXT_LENGTH = 4 * Math.ceil(CU_IPC_HANDLE_SIZE / 3);

const load = () => {
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
let loaded: ReturnType<typeof load> | undefined;

/** What the fields of a message must be; zod is loaded by the first call. */
export const descriptorSchemas = (): ReturnType<typeof load> => {
  loaded ??= load();
  return loaded;
};
