import { CU_IPC_HANDLE_SIZE } from '../../ffi/constants.ts';
import { MAX_MESSAGE_FDS } from '../../ffi/socket.ts';
import { MAX_NDIM } from '../array/shape.ts';
import type { descriptorKinds } from './descriptor-fields.ts';
import { loadZod } from './zod.ts';

/** Of the handle's bytes in base64. */
const HANDLE_TEXT_LENGTH = 4 * Math.ceil(CU_IPC_HANDLE_SIZE / 3);

const load = () => {
  const { z } = loadZod();
  const size = z.int().nonnegative();
  const id = z.string().regex(/^[0-9a-f]{32}$/, 'must be 16 bytes in hex');
  const handle = z
    .string()
    .length(HANDLE_TEXT_LENGTH)
    .base64()
    .refine(
      (text) => Buffer.from(text, 'base64').byteLength === CU_IPC_HANDLE_SIZE,
      `must be ${CU_IPC_HANDLE_SIZE} bytes in base64`,
    );
  const exporter = {
    version: z.literal(2),
    device: z
      .string()
      .regex(/^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/, 'must be the UUID of a GPU'),
    machine: z.string().regex(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/, 'must be a boot id'),
    pid: z.int().positive().max(0xffff_ffff),
    startTime: size,
    pidNamespace: size,
    checksum: z.int().min(0).max(0xffff_ffff),
  };
  const event = z.strictObject({ kind: z.literal('event'), ...exporter, handle });
  const range = {
    baseByteLength: z.int().positive(),
    byteOffset: size,
    byteLength: z.int().positive(),
    access: z.enum(['read-write', 'read']),
    bufferId: size,
    generation: size,
    layout: z
      .strictObject({
        dtype: z.string().regex(/^(V[0-9]{1,10}|[a-z0-9]{1,16})$/, 'must be the name of a dtype'),
        shape: z.array(size).max(MAX_NDIM),
        strides: z.array(z.int()).max(MAX_NDIM),
      })
      .refine(({ shape, strides }) => shape.length === strides.length, 'a stride for each axis')
      .optional(),
    readyEvent: event.optional(),
  };
  return {
    schemas: {
      legacy: z.strictObject({ kind: z.literal('legacy'), ...exporter, handle, ...range }),
      pool: z
        .strictObject({
          kind: z.literal('pool'),
          ...exporter,
          pool: id,
          handle: handle.nullable(),
          ...range,
          baseByteLength: size,
          byteLength: size,
        })
        .refine(
          ({ handle: named, byteLength, baseByteLength, layout, readyEvent }) =>
            named === null ? baseByteLength === 0 && !layout && !readyEvent : byteLength > 0,
          'sizes are for memory of the pool, and 0 for the pool itself',
        ),
      virtual: z
        .strictObject({
          kind: z.literal('virtual'),
          ...exporter,
          memory: id,
          firstPiece: z.int().nonnegative().max(0xffff_ffff),
          pieces: z.array(z.int().positive()).min(1).max(MAX_MESSAGE_FDS),
          ...range,
        })
        .refine(
          ({ pieces, baseByteLength }) =>
            pieces.reduce((sum, piece) => sum + piece, 0) === baseByteLength,
          'the pieces must add up to baseByteLength',
        ),
      event,
    },
    /** For a message that says none of these kinds. */
    anyOf: (kinds: readonly (typeof descriptorKinds)[number][]) =>
      z.object({ kind: z.enum(kinds) }),
    prettify: z.prettifyError,
  };
};
let loaded: ReturnType<typeof load> | undefined;

/** What descriptors must look like; zod is loaded by the first call. */
export const descriptorSchemas = (): ReturnType<typeof load> => {
  loaded ??= load();
  return loaded;
};
