/**
 * Reference counts shared by the worker threads of this process, for what the driver has once per
 * process. Each worker has its own JavaScript state. The counts are in a memfd that every worker
 * finds in /proc/self/fd. A terminated worker never releases its uses: its mappings stay until the
 * process exits, because its work may still be running.
 */
import { closeSync, openSync, readdirSync, readlinkSync, readSync } from 'node:fs';
import { waitForLock, withFileLock } from '../ffi/linux/file-lock.ts';
import { createMemfd, libcSymbol, mapShared } from '../ffi/linux/libc.ts';
import { viewMemory } from '../ffi/native.ts';
import { isMainThread } from '../ffi/thread.ts';
import type { Address } from '../ffi/types.ts';
import { sha256 } from './crypto.ts';
import { IpcError } from './errors.ts';

/**
 * Adds a use of the named object and runs `begin`. No other worker adds or releases a use
 * meanwhile.
 *
 * @param version tells apart the objects that had this name one after the other
 * @throws IpcError if another version is in use, and what `begin` throws; no use is added then
 */
export const acquireSharedUse = <T>(name: string, version: number, begin: () => T): T =>
  withCounts((table) => {
    const at = findOrAddRecord(table, name);
    const users = table[at + USERS] as number;
    if (users > 0 && table[at + VERSION] !== version) throw versionConflict();
    table[at + VERSION] = version;
    // Counted before `begin`: the worker may be terminated in between.
    table[at + USERS] = users + 1;
    try {
      return begin();
    } catch (error) {
      table[at + USERS] = users;
      throw error;
    }
  });

/**
 * Adds a use of memory that the driver maps once per process. It is identified by its address.
 * `map` calls the driver; no other worker maps or unmaps meanwhile.
 *
 * @param map gets a function that tells whether an address is in use; if it is, a failure must not
 * unmap it
 * @throws IpcError if another version is in use there, and what `map` throws; no use is added then
 */
export const acquireSharedMapping = <M extends { readonly base: number }>(
  version: number,
  map: (isUsed: (base: number) => boolean) => M,
): M =>
  withCounts((table) => {
    const usersAt = (base: number): number =>
      table[findOrAddRecord(table, nameOfMapping(base)) + USERS] as number;
    const mapping = map((base) => usersAt(base) > 0);
    const at = findOrAddRecord(table, nameOfMapping(mapping.base));
    const users = table[at + USERS] as number;
    if (users > 0 && table[at + VERSION] !== version) throw versionConflict();
    table[at + VERSION] = version;
    table[at + USERS] = users + 1;
    return mapping;
  });

/** The name under which {@link acquireSharedMapping} counts a mapping. */
export const nameOfMapping = (base: number): string => `memory ${base}`;

/**
 * Opens a handle that the driver has once per process, and adds a use of it. No other worker opens
 * or closes a handle while `open` calls the driver.
 */
export const openSharedHandle = <H extends number>(open: () => H): H =>
  withCounts((table) => {
    const handle = open();
    const at = findOrAddRecord(table, nameOfHandle(handle));
    const users = table[at + USERS] as number;
    // How often the driver has opened it. Some of these uses may have ended.
    table[at + VERSION] = (users > 0 ? (table[at + VERSION] as number) : 0) + 1;
    table[at + USERS] = users + 1;
    return handle;
  });

/** Adds a use of a handle that is open in this worker. */
export const retainSharedHandle = (handle: number): void =>
  withCounts((table) => {
    const at = findOrAddRecord(table, nameOfHandle(handle)) + USERS;
    table[at] = (table[at] as number) + 1;
  });

/**
 * Releases a use of {@link openSharedHandle} or {@link retainSharedHandle}. The last release in the
 * process closes the handle as often as it was opened. Closing it once before could destroy it for
 * all.
 */
export const releaseSharedHandle = (handle: number, close: () => void): void =>
  withCounts((table) => {
    const at = findOrAddRecord(table, nameOfHandle(handle));
    const users = Math.max((table[at + USERS] as number) - 1, 0);
    table[at + USERS] = users;
    if (users > 0) return;
    for (let left = Math.max(table[at + VERSION] as number, 1); left > 0; left -= 1) close();
  });

const nameOfHandle = (handle: number): string => `handle ${handle}`;

const versionConflict = (): IpcError =>
  new IpcError(
    'an earlier allocation with the same handle is open in another worker thread of this ' +
      'process: close its buffers first',
  );

/** Releases a use. The last one in the process runs `end`. */
export const releaseSharedUse = (name: string, end?: () => void): void =>
  withCounts((table) => {
    const at = findOrAddRecord(table, name);
    const users = Math.max((table[at + USERS] as number) - 1, 0);
    table[at + USERS] = users;
    if (users === 0) end?.();
  });

/** A record is four doubles: the two halves of the key, the version, the users. */
const RECORD_LENGTH = 4;
const VERSION = 2;
const USERS = 3;
/** Unused pages take no memory. */
const MAX_RECORDS = 1 << 20;
const COUNTS_BYTE_LENGTH = MAX_RECORDS * RECORD_LENGTH * Float64Array.BYTES_PER_ELEMENT;
/** The counts, then the tables of {@link withExportsTable} and {@link withWaitsTable}. */
const BYTE_LENGTH = 3 * COUNTS_BYTE_LENGTH;

/** Returns the offset of the record with that name, and adds it if needed. @throws IpcError */
function findOrAddRecord(table: Float64Array, name: string): number {
  const { high, low } = keyOf(name);
  const end = (table[END_OFFSET] as number) || RECORD_LENGTH;
  let free = end;
  for (let at = RECORD_LENGTH; at < end; at += RECORD_LENGTH) {
    if (table[at + USERS] === 0) free = Math.min(free, at);
    else if (table[at] === high && table[at + 1] === low) return at;
  }
  if (free === table.length)
    throw new IpcError(`more than ${MAX_RECORDS - 1} allocations of other processes are open here`);
  table[free] = high;
  table[free + 1] = low;
  table[free + VERSION] = 0;
  table[free + USERS] = 0;
  if (free === end) table[END_OFFSET] = end + RECORD_LENGTH;
  return free;
}

interface Key {
  readonly high: number;
  readonly low: number;
}

const MAX_KEYS = 256;
/** Keys of recent names: most uses end soon after they begin. */
const recentKeys = new Map<string, Key>();

function keyOf(name: string): Key {
  const known = recentKeys.get(name);
  if (known) return known;
  // Other processes choose the names, so two names must not collide.
  const digest = sha256(name);
  const high = Number.parseInt(digest.slice(0, 12), 16);
  const low = Number.parseInt(digest.slice(12, 24), 16);
  if (recentKeys.size === MAX_KEYS) recentKeys.clear();
  recentKeys.set(name, { high, low });
  return { high, low };
}

/** The first record is a header: where the used records end, and the address of the mapping. */
const END_OFFSET = 0;
const ADDRESS = 1;
/**
 * Then two int32: whether the main thread is using the counts, and how many workers ever existed.
 */
const BUSY = 4;
const WORKERS = 5;
const LOCK_WORDS = 8;

interface SharedTables {
  readonly fd: number;
  readonly countsTable: Float64Array;
  readonly exportsTable: Float64Array;
  readonly waitsTable: Float64Array;
  readonly words: Int32Array;
}

let sharedTables: SharedTables | undefined;

const withCounts = <T>(use: (table: Float64Array) => T): T =>
  withLock(({ countsTable }) => use(countsTable));

/**
 * Runs `use` with a second table that all workers share, zero at first. No other worker runs
 * meanwhile.
 */
export const withExportsTable = <T>(use: (table: Float64Array) => T): T =>
  withLock(({ exportsTable }) => use(exportsTable));

/** As {@link withExportsTable}, with a third table. */
export const withWaitsTable = <T>(use: (table: Float64Array) => T): T =>
  withLock(({ waitsTable }) => use(waitsTable));

/** Whether other threads of this process may use the tables, as far as this thread has opened them. */
export const mayHaveOtherUsers = (): boolean =>
  sharedTables !== undefined && (!isMainThread() || Atomics.load(sharedTables.words, WORKERS) > 0);

function withLock<T>(use: (counts: SharedTables) => T): T {
  sharedTables ??= openTables();
  const { fd, words } = sharedTables;
  if (isMainThread()) {
    // Before the first worker starts, a flag that it waits for is enough: the main thread is never
    // terminated alone.
    Atomics.store(words, BUSY, 1);
    try {
      if (Atomics.load(words, WORKERS) === 0) return use(sharedTables);
    } finally {
      Atomics.store(words, BUSY, 0);
    }
  }
  const tables = sharedTables;
  return withFileLock(fd, () => use(tables));
}

/** From now on the main thread takes the lock too. @throws SystemError as {@link withFileLock} */
function registerWorker(words: Int32Array): void {
  Atomics.add(words, WORKERS, 1);
  waitForLock(() => Atomics.load(words, BUSY) === 0);
}

const FD_FOLDER = '/proc/self/fd';

/**
 * Opens the tables, with a file descriptor of this worker's own. Node closes that when the worker
 * ends, and so releases the lock of a terminated worker.
 */
function openTables(): SharedTables {
  const folder = openSync(FD_FOLDER, 'r');
  try {
    // One worker at a time, or two would create a memfd each.
    return withFileLock(folder, () => {
      const fd = findOrCreateMemfd();
      const memory = mapOnce(fd);
      const words = new Int32Array(memory, 0, LOCK_WORDS);
      if (!isMainThread()) registerWorker(words);
      const tableAt = (n: number): Float64Array =>
        new Float64Array(memory, n * COUNTS_BYTE_LENGTH, MAX_RECORDS * RECORD_LENGTH);
      const [countsTable, exportsTable, waitsTable] = [tableAt(0), tableAt(1), tableAt(2)];
      return { fd, countsTable, exportsTable, waitsTable, words };
    });
  } finally {
    closeSync(folder);
  }
}

function findOrCreateMemfd(): number {
  const name = memfdName();
  for (const fd of readdirSync(FD_FOLDER)) {
    const path = `${FD_FOLDER}/${fd}`;
    try {
      if (readlinkSync(path).startsWith(`/memfd:${name} `)) return openSync(path, 'r+');
    } catch {
      // Closed since it was listed, by a worker that has ended.
    }
  }
  // No worker owns this file descriptor: it stays open as long as the process lives.
  return openSync(`${FD_FOLDER}/${createMemfd(name, BYTE_LENGTH)}`, 'r+');
}

/**
 * Returns the memory, mapped once per process and never unmapped: a terminated worker could not
 * unmap it.
 */
function mapOnce(fd: number): ArrayBuffer {
  const first = new Float64Array(RECORD_LENGTH);
  readSync(fd, first, 0, first.byteLength, 0);
  const known = first[ADDRESS] as number;
  const address = known === 0 ? mapShared(fd, BYTE_LENGTH).address : (known as Address);
  const memory = viewMemory(address, BYTE_LENGTH);
  new Float64Array(memory, 0, RECORD_LENGTH)[ADDRESS] = address;
  return memory;
}

/**
 * The same in all workers of this process and in no other process. Others may send a file of any
 * name, but do not know the address of libc here.
 */
function memfdName(): string {
  const secret = `${process.pid} ${libcSymbol('getpid')}`;
  return `cuffi-mappings-${sha256(secret).slice(0, 32)}`;
}
