/** What travels between processes: plain objects, JSON-safe, and untrusted until parsed. */
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
}

/** An interprocess event as another process may open it. */
export interface IpcEventDescriptor {
  readonly kind: 'event';
  readonly version: 1;
  /** The driver's 64 bytes in base64. */
  readonly handle: string;
  readonly device: string;
  readonly pid: number;
}

/** The kinds of descriptor, by the name of their kind. */
interface Kinds {
  readonly legacy: IpcBufferDescriptor;
  readonly event: IpcEventDescriptor;
}

const loadSchemas = () => {
  const { z } = loadZod();
  const common = {
    version: z.literal(1),
    handle: z
      .base64()
      .refine(
        (text) => Buffer.from(text, 'base64').byteLength === CU_IPC_HANDLE_SIZE,
        `must be ${CU_IPC_HANDLE_SIZE} bytes in base64`,
      ),
    device: z.string().regex(/^(GPU|MIG)-[0-9a-f-]{36}$/, 'must be the UUID of a GPU'),
    pid: z.int().positive(),
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

/**
 * A message as the descriptor that it should be.
 *
 * @throws IpcError that names what is wrong
 */
export function parseDescriptor<K extends keyof Kinds>(kind: K, message: unknown): Kinds[K] {
  loaded ??= loadSchemas();
  const result = loaded.schemas[kind].safeParse(message);
  if (!result.success)
    throw new IpcError(`this is no ${kind} descriptor of cuffi:\n${loaded.explain(result.error)}`);
  return result.data as Kinds[K];
}
