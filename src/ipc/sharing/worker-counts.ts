/**
 * Who of this process uses what the driver has once a process, whichever worker threads loaded
 * cuffi: each has JavaScript's state of its own. The counts are in memory that every worker finds by
 * a memfd in /proc/self/fd. A worker that is terminated never gives up its uses: what it had mapped
 * then stays so until the process ends, as work of it may still be under way.
 */
import { hash } from 'node:crypto';
import { closeSync, openSync, readdirSync, readlinkSync, readSync } from 'node:fs';
import { isMainThread } from 'node:worker_threads';
import { waitForLock, withFileLock } from '../../../ffi/linux/file-lock.ts';
import { createMemfd, libcSymbol, mapShared } from '../../../ffi/linux/libc.ts';
import { viewMemory } from '../../../ffi/native.ts';
import type { Address } from '../../../ffi/types.ts';
import { IpcError } from '../../errors.ts';

/**
 * Runs `begin` as one more use of what is called that, while no other worker begins or ends one.
 *
 * @param version which one it is, of those that had the same name one after the other
 * @throws IpcError where another version is used, and what `begin` throws: that is then no use
 */
export const acquireSharedUse = <T>(name: string, version: number, begin: () => T): T =>
  withCounts((table) => {
    const at = findOrAddRecord(table, name);
    const users = table[at + USERS] as number;
    if (users > 0 && table[at + VERSION] !== version) throw versionConflict();
    table[at + VERSION] = version;
    // Counted before, and not after: a worker may be terminated in between.
    table[at + USERS] = users + 1;
    try {
      return begin();
    } catch (error) {
      table[at + USERS] = users;
      throw error;
    }
  });

/**
 * One more use of what the driver maps once a process, which is known by its address alone: `map`
 * asks the driver for it, while no other worker does or unmaps.
 *
 * @param map is given the way to ask whether something is used at an address: then what fails after
 * the driver's answer must not unmap it
 * @throws IpcError where another version is used there, and what `map` throws: that is then no use
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

/** What a mapping of {@link acquireSharedMapping} is counted by. */
export const nameOfMapping = (base: number): string => `memory ${base}`;

/**
 * One more use of a handle of which the driver has one a process: `open` asks the driver for it,
 * while no other worker opens or closes one.
 */
export const openSharedHandle = <H extends number>(open: () => H): H =>
  withCounts((table) => {
    const handle = open();
    const at = findOrAddRecord(table, nameOfHandle(handle));
    const users = table[at + USERS] as number;
    // How often the driver was asked, of which some uses may have ended.
    table[at + VERSION] = (users > 0 ? (table[at + VERSION] as number) : 0) + 1;
    table[at + USERS] = users + 1;
    return handle;
  });

/** One more use of a handle that is open in this worker. */
export const retainSharedHandle = (handle: number): void =>
  withCounts((table) => {
    const at = findOrAddRecord(table, nameOfHandle(handle)) + USERS;
    table[at] = (table[at] as number) + 1;
  });

/**
 * Ends a use of {@link openSharedHandle} or {@link retainSharedHandle}. The last one of the process closes the handle as often as
 * it was opened, and not before: closed once, it may be gone for all.
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

/** Ends a use; where it was the last one of the process, by `end`. */
export const releaseSharedUse = (name: string, end?: () => void): void =>
  withCounts((table) => {
    const at = findOrAddRecord(table, name);
    const users = Math.max((table[at + USERS] as number) - 1, 0);
    table[at + USERS] = users;
    if (users === 0) end?.();
  });

/** An entry is four doubles: the key's halves, the version, the users. */
const RECORD_LENGTH = 4;
const VERSION = 2;
const USERS = 3;
/** Pages that nobody used take no memory. */
const MAX_RECORDS = 1 << 20;
const COUNTS_BYTE_LENGTH = MAX_RECORDS * RECORD_LENGTH * Float64Array.BYTES_PER_ELEMENT;
/** Behind the counts: what {@link withExportsTable} gives. */
const BYTE_LENGTH = 2 * COUNTS_BYTE_LENGTH;

/** Where the entry of that name is: an unused one is made its own. @throws IpcError */
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
/** Of the names that were asked for last: what begins mostly ends soon. */
const recentKeys = new Map<string, Key>();

function keyOf(name: string): Key {
  const known = recentKeys.get(name);
  if (known) return known;
  // Other processes choose the names: no two of theirs may meet.
  const digest = hash('sha256', name);
  const high = Number.parseInt(digest.slice(0, 12), 16);
  const low = Number.parseInt(digest.slice(12, 24), 16);
  if (recentKeys.size === MAX_KEYS) recentKeys.clear();
  recentKeys.set(name, { high, low });
  return { high, low };
}

/** The first entry is no one's: where the entries end that were ever used, and the address of all. */
const END_OFFSET = 0;
const ADDRESS = 1;
/** Then two words: whether the main thread is at the counts, and how many workers ever were. */
const BUSY = 4;
const WORKERS = 5;
const LOCK_WORDS = 8;

interface SharedTables {
  readonly fd: number;
  readonly countsTable: Float64Array;
  readonly exportsTable: Float64Array;
  readonly words: Int32Array;
}

let sharedTables: SharedTables | undefined;

const withCounts = <T>(use: (table: Float64Array) => T): T =>
  withLock(({ countsTable }) => use(countsTable));

/** Runs `use` with other numbers that all workers see, all 0 at first, while no other worker does. */
export const withExportsTable = <T>(use: (table: Float64Array) => T): T =>
  withLock(({ exportsTable }) => use(exportsTable));

function withLock<T>(use: (counts: SharedTables) => T): T {
  sharedTables ??= openTables();
  const { fd, words } = sharedTables;
  if (isMainThread) {
    // Before the first worker comes a word is enough, that it waits for: nobody terminates the main
    // thread alone.
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

/** From now on the main thread takes the lock, too. @throws SystemError as {@link withFileLock} */
function registerWorker(words: Int32Array): void {
  Atomics.add(words, WORKERS, 1);
  waitForLock(() => Atomics.load(words, BUSY) === 0);
}

const FD_FOLDER = '/proc/self/fd';

/**
 * The counts, and their file by a descriptor of this worker's own: Node closes that with the worker,
 * and with it goes a lock that a terminated one had.
 */
function openTables(): SharedTables {
  const folder = openSync(FD_FOLDER, 'r');
  try {
    // One worker at a time: two would make one each.
    return withFileLock(folder, () => {
      const fd = findOrCreateMemfd();
      const memory = mapOnce(fd);
      const words = new Int32Array(memory, 0, LOCK_WORDS);
      if (!isMainThread) registerWorker(words);
      const countsTable = new Float64Array(memory, 0, MAX_RECORDS * RECORD_LENGTH);
      return { fd, countsTable, exportsTable: new Float64Array(memory, COUNTS_BYTE_LENGTH), words };
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
      // Closed since it was listed: of another worker, which has ended.
    }
  }
  // This one is nobody's: it stays open as long as the process lives.
  return openSync(`${FD_FOLDER}/${createMemfd(name, BYTE_LENGTH)}`, 'r+');
}

/** Mapped once a process, for as long as that lives: nobody would unmap it for a terminated worker. */
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
 * The same in all workers, and nowhere else: other processes may send files of any name, but not
 * know where this one has its libc.
 */
function memfdName(): string {
  const secret = `${process.pid} ${libcSymbol('getpid')}`;
  return `cuffi-mappings-${hash('sha256', secret).slice(0, 32)}`;
}
