/**
 * What the modules of cuffi hold for the whole process: their Maps, Sets, arrays, counters and flags. The
 * build of the tests lists all of them, so a new one is compared, too (see left-open.ts).
 */

const VARIABLE =
  /^(?:export )?(?:const|let) (\w+)(?:: [^=\n]+)?(?:;| = (new [A-Z]\w*|\[\];|0;|false;|\{$))/gm;

/** What is kept for its next use or removed later, has a limit, and needs no comparison. */
const NOT_COUNTED: ReadonlySet<string> = new Set([
  // They only grow, and hold nothing.
  'ffi/driver.ts selectionCounter',
  'src/lifetime.ts closeCount',
  'src/ipc/timeline/waits.ts streamCount',
  // What programs and tests register by name.
  'ffi/emulated-kernels.ts emulatedKernels',
  // They say that something was done once.
  'ffi/library.ts isConfigured',
  'src/ipc/first-use.ts isNoted',
  'src/ipc/peer/child-output.ts isBrokenStderrIgnored',
  'src/lifetime.ts warned',
  // Compared by what is watched (open-resources.ts).
  'ffi/linux/poll.ts watches',
  // Free objects and records.
  'src/ipc/bytes.ts idleWriters',
  'src/lifetime.ts spareTokens',
  'src/waits/worker-tables.ts freeRecords',
  'src/waits/worker-tables.ts recentKeys',
  // Weak references: those of collected objects are removed when there are many, or at the next use.
  'src/ipc/sharing/facts.ts exportsByName',
  'src/memory/page-lock.ts trackedPages',
  // When to look again.
  'src/poller.ts lastSweepAt',
  'src/poller.ts uncheckedCalls',
]);

const KEY = 'cuffi.test.tables';

interface Variable {
  readonly read: () => unknown;
  /** How its entries are called; undefined if they do not count. */
  readonly kind: string | undefined;
}

/** Returns the source of a module of cuffi that also lists its variables. The lines keep their numbers. */
export function listTables(file: string, source: string): string {
  const entries = [...source.matchAll(VARIABLE)].map(([, name, value]) => {
    const key = `${file} ${name}`;
    const kind = value !== undefined && !NOT_COUNTED.has(key) ? `'entry of ${key}'` : 'undefined';
    return `['${key}', { read: () => ${name}, kind: ${kind} }]`;
  });
  if (entries.length === 0) return source;
  const list = `((globalThis as any)[Symbol.for('${KEY}')] ??= new Map())`;
  return `${source};for (const [key, variable] of [${entries.join()}] as const) ${list}.set(key, variable);`;
}

const variables = (): ReadonlyMap<string, Variable> =>
  (globalThis as Record<symbol, ReadonlyMap<string, Variable> | undefined>)[Symbol.for(KEY)] ??
  new Map();

/** The value of a variable of a module, by its file and name; undefined if its module is not loaded. */
export const moduleVariable = (key: string): unknown => variables().get(key)?.read();

/** How many entries each table has. */
export function* tableSizes(): Generator<readonly [kind: string, size: number]> {
  for (const { read, kind } of variables().values()) {
    const size = kind === undefined ? 0 : sizeOf(read());
    if (kind !== undefined && size > 0) yield [kind, size];
  }
}

function sizeOf(value: unknown): number {
  if (typeof value === 'number' || typeof value === 'boolean') return Number(value);
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return 0;
  const { size, length, all } = value as { size?: unknown; length?: unknown; all?: unknown };
  if (typeof size === 'number') return size;
  if (typeof length === 'number') return length;
  return Array.isArray(all) ? all.length : 0;
}
