/** What travels between processes: plain objects, JSON-safe, and untrusted until parsed. */
import { crc32 } from 'node:zlib';
import { CU_IPC_HANDLE_SIZE } from '../../ffi/constants.ts';
import { IpcError } from '../errors.ts';
import { loadZod } from './zod.ts';

/**
 * A range of device memory as another process may open it: what `getIpcHandle(buffer)` gives and
 * `openIpcBuffer` takes. Plain data: it survives JSON, `process.send` and structured cloning.
 */
export interface IpcBufferDescriptor {
  readonly kind: 'legacy';
  readonly version: 1;
  /** The driver's 64 bytes in base64. They name the whole allocation. */
  readonly handle: string;
  /** Where the range begins in its allocation, in bytes. */
  readonly byteOffset: number;
  readonly byteLength: number;
  /** The driver's number of the allocation, which tells it from an earlier one at its address. */
  readonly bufferId: number;
  /** The GPU's UUID. Ordinals differ between processes. */
  readonly device: string;
  /** The exporting process. */
  readonly pid: number;
  /** CRC-32 of the other fields: what was altered on its way is refused, not handed to the driver. */
  readonly checksum: number;
}

/** An interprocess event as another process may open it. */
export interface IpcEventDescriptor {
  readonly kind: 'event';
  readonly version: 1;
  /** The driver's 64 bytes in base64. */
  readonly handle: string;
  readonly device: string;
  readonly pid: number;
  readonly checksum: number;
}

/** The kinds of descriptor, by the name of their kind. */
interface Kinds {
  readonly legacy: IpcBufferDescriptor;
  readonly event: IpcEventDescriptor;
}

/** What names one object of another process. */
export type IpcDescriptor = Kinds[keyof Kinds];

type Unsealed<D> = Omit<D, 'checksum'>;

// The driver does not notice every altered byte of a handle: it maps something, and the first use
// of that ends the context (CUDA_ERROR_LAUNCH_FAILED, seen on an H200).
const checksumOf = (fields: object): number => {
  const { kind, version, handle, byteOffset, byteLength, bufferId, device, pid } =
    fields as Partial<IpcBufferDescriptor>;
  return crc32(
    `${kind} ${version} ${handle} ${byteOffset} ${byteLength} ${bufferId} ${device} ${pid}`,
  );
};

/** A descriptor, complete with its checksum. */
export const sealDescriptor = <K extends keyof Kinds>(
  fields: Unsealed<Kinds[K]> & { readonly kind: K },
): Kinds[K] => ({ ...fields, checksum: checksumOf(fields) }) as unknown as Kinds[K];

/** Of the handle's bytes in base64. */
const HANDLE_TEXT_LENGTH = 4 * Math.ceil(CU_IPC_HANDLE_SIZE / 3);

const loadSchemas = () => {
  const { z } = loadZod();
  const common = {
    version: z.literal(1),
    handle: z
      .string()
      .length(HANDLE_TEXT_LENGTH)
      .base64()
      .refine(
        (text) => Buffer.from(text, 'base64').byteLength === CU_IPC_HANDLE_SIZE,
        `must be ${CU_IPC_HANDLE_SIZE} bytes in base64`,
      ),
    device: z.string().regex(/^(GPU|MIG)-[0-9a-f-]{36}$/, 'must be the UUID of a GPU'),
    pid: z.int().positive(),
    checksum: z.int().min(0).max(0xffff_ffff),
  };
  return {
    schemas: {
      legacy: z.strictObject({
        kind: z.literal('legacy'),
        ...common,
        byteOffset: z.int().nonnegative(),
        byteLength: z.int().positive(),
        bufferId: z.int().nonnegative(),
      }),
      event: z.strictObject({ kind: z.literal('event'), ...common }),
    },
    explain: z.prettifyError,
  };
};
let loaded: ReturnType<typeof loadSchemas> | undefined;

/** Descriptors that were found sound: one that comes again through a connection is not read anew. */
const found = new WeakSet<object>();

/**
 * A message as the descriptor that it should be.
 *
 * @throws IpcError that names what is wrong
 */
export function parseDescriptor<K extends keyof Kinds>(kind: K, message: unknown): Kinds[K] {
  if (isFrozenKind(kind, message) && found.has(message)) return message;
  loaded ??= loadSchemas();
  const result = loaded.schemas[kind].safeParse(message);
  if (!result.success)
    throw new IpcError(
      `this is no ${kind} descriptor of cuffi:\n${loaded.explain(result.error).slice(0, 1000)}`,
    );
  const descriptor = result.data as Kinds[K];
  if (checksumOf(descriptor) !== descriptor.checksum)
    throw new IpcError(
      `this ${kind} descriptor of process ${descriptor.pid} was altered on its way: its checksum is wrong`,
    );
  if (isFrozenKind(kind, message)) found.add(message);
  return descriptor;
}

// What can still be changed is checked each time.
const isFrozenKind = <K extends keyof Kinds>(kind: K, message: unknown): message is Kinds[K] =>
  Object.isFrozen(message) && (message as Partial<Kinds[K]> | null)?.kind === kind;
