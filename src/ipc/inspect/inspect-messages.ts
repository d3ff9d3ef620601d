/**
 * What goes through the socket for inspection: one message of JSON each way. After a request for
 * probes, the socket becomes a connection.
 */
import { loadZod } from '../load-zod.ts';
import type { infer as Infer } from '../zod.ts';
import type { ProcessFacts } from './process-facts.ts';
import type { SharedObject } from './shared-objects.ts';

const INSPECTION_VERSION = 1;

/** What a client may ask for. */
export const REQUESTS = ['list', 'facts', 'probes'] as const;
export type InspectionRequest = (typeof REQUESTS)[number];

/** A process and what it shares. */
export interface ListReply {
  readonly process: Pick<ProcessFacts, 'pid' | 'program' | 'user' | 'driver'>;
  readonly objects: readonly SharedObject[];
  /** How many more objects it shares than the message has room for. */
  readonly omitted: number;
}

/** The bytes of a request. */
export const encodeRequest = (ask: InspectionRequest): Uint8Array =>
  Buffer.from(JSON.stringify({ cuffi: INSPECTION_VERSION, ask }));

const MAX_REQUEST_BYTE_LENGTH = 256;

/** Reads a request of an untrusted client; undefined for anything else. */
export function decodeRequest(data: Uint8Array): InspectionRequest | undefined {
  if (data.byteLength > MAX_REQUEST_BYTE_LENGTH) return undefined;
  try {
    const message: unknown = JSON.parse(Buffer.from(data).toString());
    if (typeof message !== 'object' || message === null) return undefined;
    const { cuffi, ask } = message as { readonly cuffi?: unknown; readonly ask?: unknown };
    return cuffi === INSPECTION_VERSION ? REQUESTS.find((name) => name === ask) : undefined;
  } catch {
    return undefined;
  }
}

// ---- Replies, checked by the client ----

const schemas = (() => {
  let made: ReturnType<typeof makeSchemas> | undefined;
  return () => {
    made ??= makeSchemas();
    return made;
  };
})();

function makeSchemas() {
  const z = loadZod();
  const text = z.string().max(4096);
  const count = z.int().nonnegative();
  const limit = z.object({ soft: z.number().nullable(), hard: z.number().nullable() });
  const driver = z.object({ name: text, version: text });
  const device = z.object({
    ordinal: count,
    uuid: text,
    name: text,
    computeMode: count,
    peers: z.array(text).max(1024),
  });
  const facts = z.object({
    pid: z.int().positive(),
    startTime: count.optional(),
    program: text.optional(),
    user: count.optional(),
    machine: text.optional(),
    namespaces: z.partialRecord(z.enum(['pid', 'ipc', 'mnt', 'net', 'user']), count),
    capabilities: z
      .string()
      .regex(/^[0-9a-f]{1,16}$/)
      .optional(),
    sharedMemory: count.optional(),
    isWsl: z.boolean().optional(),
    openDescriptors: count.optional(),
    limits: z.object({ descriptors: limit.optional(), lockedMemory: limit.optional() }),
    environment: z.record(text, text).optional(),
    driver: driver.optional(),
    devices: z.array(device).max(1024).optional(),
  });
  const holder = z.object({
    pid: count,
    ageMs: z.number().nonnegative(),
    isRevoked: z.boolean(),
    // Processes with cuffi 0.2.0 name a holder once for each lease.
    leases: z.int().positive().optional(),
  });
  const list = z.object({
    process: facts.pick({ pid: true, program: true, user: true, driver: true }),
    objects: z
      .array(
        z.object({
          kind: text,
          byteLength: count,
          device: text.optional(),
          isOrphaned: z.boolean(),
          holders: z.array(holder).max(65_536),
        }),
      )
      .max(65_536),
    omitted: count,
  });
  return { list, facts, probes: z.object({ ok: z.literal(true) }) };
}

type Schemas = ReturnType<typeof makeSchemas>;
export type Reply<R extends InspectionRequest> = Infer<Schemas[R]>;

/** Checks the reply of an untrusted process; undefined if it is not one. */
export function decodeReply<R extends InspectionRequest>(
  request: R,
  data: Uint8Array,
): Reply<R> | undefined {
  try {
    const parsed = schemas()[request].safeParse(JSON.parse(Buffer.from(data).toString()));
    return parsed.success ? (parsed.data as Reply<R>) : undefined;
  } catch {
    return undefined;
  }
}
