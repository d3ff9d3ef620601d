/**
 * What is open in this process, by kind: descriptors, mappings, objects of the driver and of cuffi, listeners,
 * timers, child processes, and the entries of all tables of modules.
 */
import { subscribe } from 'node:diagnostics_channel';
import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import type { OpenObjects } from '../../ffi/emulator/open-objects.ts';
import { libc } from '../../ffi/linux/libc.ts';
import type { Context } from '../../src/context.ts';
import { onHardware } from './driver.ts';
import { moduleVariable, tableSizes } from './module-tables.ts';

/** What is open. */
export interface OpenResources {
  /** How many there are of each kind. */
  readonly counts: ReadonlyMap<string, number>;
  /** How many there are in the emulated driver that is selected, without what contexts keep until their reset. */
  readonly inDriver: ReadonlyMap<string, number>;
  /** How many objects of cuffi there are in the primary contexts. */
  readonly inContexts: ReadonlyMap<string, number>;
  /** Which emulated driver that is, and how often a driver had been selected. */
  readonly emulator: OpenObjects | undefined;
  readonly selection: number;
}

/** Counts what is open. */
export const openResources = (): OpenResources => ({
  counts: countAll([
    // A real driver opens descriptors when it likes, and nobody can ask what it has open.
    ...(onHardware ? [] : [descriptors]),
    mappings,
    watches,
    listeners,
    activeResources,
    liveTimers,
    children,
    tableSizes,
  ]),
  inDriver: countAll(onHardware ? [] : [driverObjects, keptByContexts]),
  inContexts: countAll([contextObjects]),
  emulator: selectedEmulator(),
  selection: selectionNumber(),
});

type Found = Iterable<readonly [kind: string, count?: number]>;

function countAll(sources: readonly (() => Found)[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const source of sources)
    for (const [kind, count = 1] of source()) counts.set(kind, (counts.get(kind) ?? 0) + count);
  return counts;
}

// ---- The process ----

/** Files that a real driver opens and maps when it likes, and what Node opens at its first use. */
const OF_DRIVER = /^\/dev\/(nvidia|char)|^\/proc\/|cuda\.shm|\[io_uring\]/;
/** Those of the emulated driver. Callers get descriptors of pools and of physical memory, too. */
const OF_EMULATOR = /^\/memfd:cuffi\.(memory|events|pool|virtual)/;

/** Those that Node has opened for itself before any test, without the one that the folder was read through. */
const ofNode: ReadonlySet<string> = new Set(
  readdirSync('/proc/self/fd').filter((fd) => existsSync(`/proc/self/fd/${fd}`)),
);

function* descriptors(): Found {
  for (const fd of readdirSync('/proc/self/fd')) {
    if (ofNode.has(fd)) continue;
    let target: string;
    try {
      target = readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      // Closed since, as is the one that the folder was read through.
      continue;
    }
    const [, emulated] = OF_EMULATOR.exec(target) ?? [];
    if (emulated !== 'memory' && emulated !== 'events' && !OF_DRIVER.test(target))
      yield [`descriptor of ${emulated ? `cuffi.${emulated}` : nameOf(target)}`];
  }
  // That of the process that was checked last is kept.
  const checked = moduleVariable('ffi/linux/pidfd.ts lastChecked') as
    | { readonly pidfd?: number | undefined }
    | undefined;
  if (checked?.pidfd !== undefined) yield ['descriptor of anon_inode:[pidfd]', -1];
  for (const { open } of emulators)
    for (const [name, count] of Object.entries(open.countFds()))
      yield [`descriptor of ${name.replace(/\.$/, '')}`, -count];
}

/** What the event loop watches. A real driver has none. */
function* watches(): Found {
  const watched = moduleVariable('ffi/linux/poll.ts watches') as
    | ReadonlyMap<number, unknown>
    | undefined;
  for (const fd of watched?.keys() ?? [])
    yield [`watch of ${nameOf(readlinkSync(`/proc/self/fd/${fd}`))}`];
}

/** Without what differs from one to the next. */
const nameOf = (target: string): string =>
  target
    .replace(/^\/memfd:(.*) \(deleted\)$/, '$1')
    .replace(/:\[\d+\]$/, '')
    .replaceAll(/[\da-f]{12,}|\d{2,}/g, 'N');

/** What cuffi has mapped, by address. */
const mapped = new Map<number, string>();

function* mappings(): Found {
  for (const name of mapped.values()) yield [`mapping of ${name}`];
}

type MapCall = (...args: number[]) => unknown;

/** Notes what is mapped from now on, other than by the emulated driver. */
function noteMappings(): void {
  replaceCall('mmap', (mmap) => (...args) => {
    const address = mmap(...args);
    const [at, , , , fd = -1] = args;
    // Some anonymous memory stays for ever, so that nothing else gets its addresses.
    if (at !== 0 || fd < 0 || typeof address !== 'number') return address;
    const path = readlinkSync(`/proc/self/fd/${fd}`);
    if (!OF_EMULATOR.test(path) && !OF_DRIVER.test(path)) mapped.set(address, nameOf(path));
    return address;
  });
  replaceCall('munmap', (munmap) => (...args) => {
    mapped.delete(args[0] as number);
    return munmap(...args);
  });
}

/** Replaces a function of libc when it is first used: until then it is not bound. */
function replaceCall(name: 'mmap' | 'munmap', make: (call: MapCall) => MapCall): void {
  const { get, value: bound } = Object.getOwnPropertyDescriptor(libc, name) ?? {};
  Object.defineProperty(libc, name, {
    configurable: true,
    enumerable: true,
    get() {
      const value = make((get ? get.call(libc) : bound) as MapCall);
      Object.defineProperty(libc, name, { configurable: true, enumerable: true, value });
      return value;
    },
  });
}

function* listeners(): Found {
  for (const event of process.eventNames())
    yield [`listener of process for ${String(event)}`, process.listenerCount(event)];
}

function* activeResources(): Found {
  // Timers are counted below.
  for (const kind of process.getActiveResourcesInfo())
    if (kind !== 'Timeout') yield [`active ${kind}`];
}

function* children(): Found {
  const path = `/proc/self/task/${process.pid}/children`;
  for (const pid of readFileSync(path, 'utf8').split(' ')) if (pid !== '') yield ['child process'];
}

type Timer = NodeJS.Timeout & { readonly _destroyed: boolean; readonly _onTimeout: unknown };
const timers = new Set<Timer>();

/** Node itself lists only those that keep the process alive. */
function* liveTimers(): Found {
  for (const timer of timers)
    if (timer._destroyed) timers.delete(timer);
    else
      yield [`timer that calls ${String(timer._onTimeout).replaceAll(/\s+/g, ' ').slice(0, 60)}`];
}

/** Notes each timer that is started, and each mapping that is made, from now on. */
export function noteFromNowOn(): void {
  noteMappings();
  for (const name of ['setTimeout', 'setInterval'] as const) {
    const start = globalThis[name] as (...args: unknown[]) => Timer;
    const noting = (...args: unknown[]): Timer => {
      const timer = start(...args);
      timers.add(timer);
      return timer;
    };
    // With `promisify`, which it has as a property.
    Object.assign(globalThis, { [name]: Object.assign(noting, start) });
  }
}

// ---- The driver that is selected ----

interface Emulator {
  readonly open: OpenObjects;
  /** How often a driver had been selected when it was made. */
  readonly selection: number;
  /** Whether cuffi had one open then: this one is a test's own. */
  readonly isBeside: boolean;
}

const emulators: Emulator[] = [];
subscribe('cuffi.emulated-driver', (message) => {
  const open = message as OpenObjects;
  emulators.push({ open, selection: selectionNumber(), isBeside: openedSource() !== undefined });
});

const openedSource = (): { name: string } | undefined =>
  moduleVariable('ffi/driver.ts openedSource') as { name: string } | undefined;

const selectionNumber = (): number => Number(moduleVariable('ffi/driver.ts selectionCounter') ?? 0);

/** The emulated driver that cuffi uses, unless it uses none. A test may have others for itself. */
function selectedEmulator(): OpenObjects | undefined {
  const isOpened = openedSource()?.name === 'emulated';
  return emulators.findLast(({ selection, isBeside }) =>
    isOpened ? !isBeside : selection < selectionNumber(),
  )?.open;
}

function* driverObjects(): Found {
  for (const [kind, count] of Object.entries(selectedEmulator()?.countObjects() ?? {}))
    yield [`driver: ${kind}`, count];
}

/** The primary contexts of the driver that is selected. */
export const primaryContexts = (): Context[] => {
  const known = moduleVariable('src/context.ts primaryContexts') as
    | { readonly selection: number; readonly byOrdinal: ReadonlyMap<number, Context> }
    | undefined;
  return known?.selection === selectionNumber() ? [...known.byOrdinal.values()] : [];
};

function* contextObjects(): Found {
  for (const context of primaryContexts()) {
    for (const kind of context.resources.kinds) yield [`open ${kind}`];
    yield ['open Module', -countBuiltinModules(context)];
    yield ['listener of a context for its reset', context.onReset.size];
    yield ['queued release', context.releases.size];
  }
}

/** The kinds of which contexts keep some until their reset. Those of drivers selected before are not known. */
export const KEPT_BY_CONTEXTS: ReadonlySet<string> = new Set([
  'driver: stream',
  'driver: event',
  'driver: module',
  'driver: host registration',
  'driver: pinned allocation',
]);

function* keptByContexts(): Found {
  for (const context of primaryContexts()) {
    const wakeUps = keptBy<{ epoch: number; size: number }>('src/waits/wake-up.ts wakers', context);
    const wakeStreams = wakeUps?.epoch === context.epoch ? wakeUps.size : 0;
    const streams = (moduleVariable('src/memory/internal-stream.ts streams') ?? {}) as Readonly<
      Record<string, WeakMap<Context, { readonly epoch: number }>>
    >;
    for (const byContext of Object.values(streams))
      if (byContext.get(context)?.epoch === context.epoch) yield ['driver: stream', -1];
    yield ['driver: stream', -wakeStreams];
    yield ['driver: event', -wakeStreams - context.workTracker.eventCount];
    yield ['driver: module', -countBuiltinModules(context)];
  }
}

/** What a module keeps for a context. */
const keptBy = <T>(variable: string, context: Context): T | undefined =>
  (moduleVariable(variable) as WeakMap<Context, T> | undefined)?.get(context);

function countBuiltinModules(context: Context): number {
  const loaded = keptBy<Map<string, { readonly module?: { readonly closed: boolean } }>>(
    'src/kernel/builtin-kernels.ts loadedByContext',
    context,
  );
  return [...(loaded?.values() ?? [])].filter(({ module }) => module && !module.closed).length;
}
