/**
 * What the worker threads of this process know of each other, in three tables: how many use what the driver has once
 * per process, which memory they share, and which of their streams wait. Each worker has its own JavaScript state. The
 * tables are in a memfd that every worker finds in /proc/self/fd. A terminated worker never releases its uses: its
 * mappings stay until the process exits, because its work may still be running.
 */
import { closeSync, openSync, readdirSync, readlinkSync, readSync } from 'node:fs';
import { waitForLock, withFileLock } from '../../ffi/linux/file-lock.ts';
import { createMemfd, libc, libcSymbol, mapShared } from '../../ffi/linux/libc.ts';
import { addressOf, viewMemory } from '../../ffi/native.ts';
import { isMainThread, threadId } from '../../ffi/thread.ts';
import type { Address, CUcontext, CUdeviceptr } from '../../ffi/types.ts';
import { sha256 } from '../crypto.ts';
import { IpcError } from '../errors.ts';
import { readWord } from './read-word.ts';

/** Numbers in a table. Unused pages take no memory. */
const TABLE_LENGTH = 1 << 22;
const TABLE_BYTE_LENGTH = TABLE_LENGTH * Float64Array.BYTES_PER_ELEMENT;
const BYTE_LENGTH = 3 * TABLE_BYTE_LENGTH;

// ---------------------------------------------------------------------------------------------
// Uses of what the driver has once per process
// ---------------------------------------------------------------------------------------------

/**
 * Adds a use of the named object and runs `begin`. No other worker adds or releases a use meanwhile.
 *
 * @param version tells apart the objects that had this name one after the other
 * @throws IpcError if another version is in use, and what `begin` throws; no use is added then
 */
export const acquireSharedUse = <T>(name: string, version: number, begin: () => T): T =>
  withTable('uses', (table) => {
    // Counted before `begin`: the worker may be terminated in between.
    const at = addUser(table, name, version);
    try {
      return begin();
    } catch (error) {
      removeUser(table, at);
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
  withTable('uses', (table) => {
    const mapping = map((base) => findUse(table, keyOf(nameOfMapping(base))) !== undefined);
    addUser(table, nameOfMapping(mapping.base), version);
    return mapping;
  });

/** The name under which {@link acquireSharedMapping} counts a mapping. */
export const nameOfMapping = (base: number): string => `memory ${base}`;

/**
 * Opens a handle that the driver has once per process, and adds a use of it. No other worker opens
 * or closes a handle while `open` calls the driver.
 */
export const openSharedHandle = <H extends number>(open: () => H): H =>
  withTable('uses', (table) => {
    const handle = open();
    const at = addUser(table, nameOfHandle(handle));
    // How often the driver has opened it. Some of these uses may have ended.
    table[at + VERSION] = (table[at + VERSION] as number) + 1;
    return handle;
  });

/** Adds a use of a handle that is open in this worker. */
export const retainSharedHandle = (handle: number): void =>
  withTable('uses', (table) => {
    addUser(table, nameOfHandle(handle));
  });

/**
 * Releases a use of {@link openSharedHandle} or {@link retainSharedHandle}. The last release in the
 * process closes the handle as often as it was opened. Closing it once before could destroy it for
 * all.
 */
export const releaseSharedHandle = (handle: number, close: () => void): void =>
  withTable('uses', (table) => {
    const at = findUse(table, keyOf(nameOfHandle(handle)));
    const opened = at === undefined ? 0 : (table[at + VERSION] as number);
    if (!removeUser(table, at)) return;
    for (let left = Math.max(opened, 1); left > 0; left -= 1) close();
  });

const nameOfHandle = (handle: number): string => `handle ${handle}`;

const versionConflict = (): IpcError =>
  new IpcError(
    'an earlier allocation with the same handle is open in another worker thread of this ' +
      'process: close its buffers first',
  );

/** Releases a use. The last one in the process runs `end`. */
export const releaseSharedUse = (name: string, end?: () => void): void =>
  withTable('uses', (table) => {
    if (removeUser(table, findUse(table, keyOf(name)))) end?.();
  });

/**
 * A record of a use is five numbers: the two halves of the key, the version, the users (at least one), and the
 * next record of its chain, or of the free ones.
 */
const USE_LENGTH = 5;
const VERSION = 2;
const USERS = 3;
const NEXT_USE = 4;

/** Returns the record of a name, if it has users. */
function findUse(table: Float64Array, { high, low }: Key): number | undefined {
  for (let at = table[headOf(low)] as number; at !== 0; at = table[at + NEXT_USE] as number)
    if (table[at] === high && table[at + 1] === low) return at;
  return undefined;
}

/**
 * Adds a user of a name, and returns its record.
 *
 * @param version any by default @throws IpcError if it has users of another version, or the table is full
 */
function addUser(table: Float64Array, name: string, version?: number): number {
  const key = keyOf(name);
  const known = findUse(table, key);
  if (known !== undefined) {
    if (version !== undefined && table[known + VERSION] !== version) throw versionConflict();
    table[known + USERS] = (table[known + USERS] as number) + 1;
    return known;
  }
  const free = table[FREE_USE] as number;
  const at = free || (table[END_OFFSET] as number) || FIRST_RECORD;
  if (at + USE_LENGTH > table.length)
    throw new IpcError(`more than ${MAX_USES} allocations of other processes are open here`);
  if (free) table[FREE_USE] = table[at + NEXT_USE] as number;
  else table[END_OFFSET] = at + USE_LENGTH;
  const head = headOf(key.low);
  table.set([key.high, key.low, version ?? 0, 1, table[head] as number], at);
  // Last: the worker may be terminated before.
  table[head] = at;
  return at;
}

/** Removes a user. Returns whether it was the last one, as for a record that is not there. */
function removeUser(table: Float64Array, at: number | undefined): boolean {
  if (at === undefined) return true;
  const users = table[at + USERS] as number;
  if (users > 1) {
    table[at + USERS] = users - 1;
    return false;
  }
  // Out of its chain first: a worker that is terminated in between leaves no record without users there.
  unlink(table, table[at + 1] as number, at, NEXT_USE);
  table[at + NEXT_USE] = table[FREE_USE] as number;
  table[FREE_USE] = at;
  return true;
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

// ---------------------------------------------------------------------------------------------
// Memory that threads share
// ---------------------------------------------------------------------------------------------

/**
 * A record of an export is seven numbers: the export id (0 for a free record), the index of the first
 * piece, the address, the size in bytes, how many threads use it, whether the sharing thread has closed it, and
 * the next record of its chain. The sharing thread counts as a user until all others have closed it.
 */
const EXPORT_LENGTH = 7;
const PIECE = 1;
const BASE = 2;
const SIZE = 3;
const EXPORT_USERS = 4;
const IS_CLOSED = 5;
const NEXT_EXPORT = 6;

/** Memory that a thread shares with the others of the process. */
export interface ThreadExport {
  readonly id: number;
  /** The index of the first piece, for virtual memory. */
  readonly piece: number;
  readonly base: CUdeviceptr;
  readonly byteLength: number;
}

/** Free records of memory that this thread has shared. */
const freeRecords: number[] = [];

/** Adds a record, and returns where. @throws IpcError if the table is full */
export const addThreadExport = ({ id, piece, base, byteLength }: ThreadExport): number =>
  withTable('exports', (table) => {
    const at = freeRecords.pop() ?? ((table[END_OFFSET] as number) || FIRST_RECORD);
    if (at + EXPORT_LENGTH > table.length)
      throw new IpcError('too many allocations are shared with other worker threads');
    table[END_OFFSET] = Math.max(table[END_OFFSET] as number, at + EXPORT_LENGTH);
    const head = headOf(id);
    table.set([id, piece, base, byteLength, 1, 0, table[head] as number], at);
    table[head] = at;
    return at;
  });

/** Notes that the memory of a record has grown to a size. */
export const growThreadExport = (at: number, byteLength: number): void =>
  withTable('exports', (table) => {
    table[at + SIZE] = Math.max(table[at + SIZE] as number, byteLength);
  });

/**
 * Marks memory as closed in the thread that shared it. If no other thread uses it, removes its record
 * and returns true.
 */
export const closeThreadExport = (at: number): boolean =>
  withTable('exports', (table) => {
    table[at + IS_CLOSED] = 1;
    if ((table[at + EXPORT_USERS] as number) > 1) return false;
    removeRecord(table, at);
    return true;
  });

/** Removes a record, whether or not other threads use its memory. */
export const removeThreadExport = (at: number): void =>
  withTable('exports', (table) => removeRecord(table, at));

function removeRecord(table: Float64Array, at: number): void {
  unlink(table, table[at] as number, at, NEXT_EXPORT);
  table[at] = 0;
  freeRecords.push(at);
}

/** Whether a thread has shared memory and has not closed it. */
export const hasThreadExport = (id: number, piece: number): boolean =>
  withTable('exports', (table) => findExport(table, id, piece) !== undefined);

/** Adds a use of memory that another thread has shared; undefined if it has closed it. */
export const useThreadExport = (
  id: number,
  piece: number,
): { readonly at: number; readonly base: CUdeviceptr } | undefined =>
  withTable('exports', (table) => {
    const at = findExport(table, id, piece);
    if (at === undefined) return undefined;
    table[at + EXPORT_USERS] = (table[at + EXPORT_USERS] as number) + 1;
    return { at, base: table[at + BASE] as CUdeviceptr };
  });

/** The size of the memory of a record. */
export const threadExportSize = (at: number): number =>
  withTable('exports', (table) => table[at + SIZE] as number);

/** Releases a use of {@link useThreadExport}. A reset in the sharing thread may have removed the record. */
export const releaseThreadExport = (at: number, id: number): void =>
  withTable('exports', (table) => {
    if (table[at] === id) table[at + EXPORT_USERS] = (table[at + EXPORT_USERS] as number) - 1;
  });

/** Returns the record of memory that its sharing thread has not closed. */
function findExport(table: Float64Array, id: number, piece: number): number | undefined {
  for (let at = table[headOf(id)] as number; at !== 0; at = table[at + NEXT_EXPORT] as number)
    if (table[at] === id && table[at + PIECE] === piece)
      return table[at + IS_CLOSED] === 0 ? at : undefined;
  return undefined;
}

// ---------------------------------------------------------------------------------------------
// Waits of streams
// ---------------------------------------------------------------------------------------------

/**
 * A record of a wait is five numbers: the context's handle (0 for a free record), the thread, the
 * stream's number in that thread, the address of the awaited word, and the awaited value.
 */
const WAIT_LENGTH = 5;
const THREAD = 1;
const STREAM = 2;
const WORD = 3;
const VALUE = 4;
/** More waits than streams of one process can have. Later waits are not visible to other threads. */
const MAX_WAITS = 4096;

/** A context, as far as it matters here. */
export interface WaitingContext {
  readonly handle: CUcontext;
}

/** Shows a wait of this thread to the others. Returns what {@link hideWait} needs. */
export function showWait(
  context: WaitingContext,
  stream: number,
  word: Address,
  value: number,
): number {
  const { handle } = context;
  return withTable('waits', (table) => {
    const end = (table[END_OFFSET] as number) || WAIT_LENGTH;
    let at = WAIT_LENGTH;
    while (at < end && table[at] !== 0) at += WAIT_LENGTH;
    if (at >= MAX_WAITS * WAIT_LENGTH) return 0;
    table[at + THREAD] = threadId();
    table[at + STREAM] = stream;
    table[at + WORD] = word;
    table[at + VALUE] = value;
    table[at] = handle;
    if (at === end) table[END_OFFSET] = end + WAIT_LENGTH;
    return at;
  });
}

/** Hides a wait that is satisfied. Must come before its word is unmapped. */
export function hideWait(shown: number): void {
  if (shown === 0) return;
  withTable('waits', (table) => {
    table[shown] = 0;
  });
}

/**
 * Returns how many streams of other threads wait in a context. A thread that was terminated leaves its
 * records and its mappings: the words in them tell when its streams no longer wait.
 */
export function countOtherWaitingStreams(context: WaitingContext): number {
  if (!mayHaveOtherUsers()) return 0;
  const { handle } = context;
  return withTable('waits', (table) => {
    const streams = new Set<string>();
    const end = table[END_OFFSET] as number;
    for (let at = WAIT_LENGTH; at < end; at += WAIT_LENGTH) {
      if (table[at] !== handle || table[at + THREAD] === threadId()) continue;
      libc.memmove(addressOf(word), table[at + WORD] as number, word.byteLength);
      if (readWord(word, 0) >= (table[at + VALUE] as number)) continue;
      streams.add(`${table[at + THREAD]} ${table[at + STREAM]}`);
    }
    return streams.size;
  });
}

/** A copy of the word of another thread. */
const word = new Uint32Array(2);

// ---------------------------------------------------------------------------------------------
// The tables
// ---------------------------------------------------------------------------------------------

/** The first record of a table is a header: where the used records end. */
const END_OFFSET = 0;
/** In the header of the first table follows the address of the mapping. */
const ADDRESS = 1;
/** Then two int32: whether the main thread is using the tables, and how many workers ever existed. */
const BUSY = 4;
const WORKERS = 5;
/** In the header of the uses: the first record that is free. */
const FREE_USE = 3;
const HEADER_LENGTH = 4;
/** Behind the header stand the first records of chains, so that no search reads a whole table. */
const CHAIN_COUNT = 1 << 12;
const FIRST_RECORD = HEADER_LENGTH + CHAIN_COUNT;
const MAX_USES = Math.floor((TABLE_LENGTH - FIRST_RECORD) / USE_LENGTH);

/** Where the first record of the chain of a key stands. */
const headOf = (key: number): number => HEADER_LENGTH + (key % CHAIN_COUNT);

/** Takes a record out of its chain. */
function unlink(table: Float64Array, key: number, at: number, nextAt: number): void {
  let link = headOf(key);
  while (table[link] !== at) {
    if (table[link] === 0) return;
    link = (table[link] as number) + nextAt;
  }
  table[link] = table[at + nextAt] as number;
}

type TableName = 'uses' | 'exports' | 'waits';

interface SharedTables extends Readonly<Record<TableName, Float64Array>> {
  readonly fd: number;
  readonly words: Int32Array;
}

let sharedTables: SharedTables | undefined;

/** Runs `use` with a table, zero at first, while no other worker uses any. */
export const withTable = <T>(name: TableName, use: (table: Float64Array) => T): T =>
  withLock((tables) => use(tables[name]));

/** Whether other threads of this process may use the tables, as far as this thread has opened them. */
const mayHaveOtherUsers = (): boolean =>
  sharedTables !== undefined && (!isMainThread() || Atomics.load(sharedTables.words, WORKERS) > 0);

function withLock<T>(use: (tables: SharedTables) => T): T {
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
      const words = new Int32Array(memory, 0, 2 * HEADER_LENGTH);
      if (!isMainThread()) registerWorker(words);
      const tableAt = (n: number): Float64Array =>
        new Float64Array(memory, n * TABLE_BYTE_LENGTH, TABLE_LENGTH);
      return { fd, uses: tableAt(0), exports: tableAt(1), waits: tableAt(2), words };
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
  const first = new Float64Array(HEADER_LENGTH);
  readSync(fd, first, 0, first.byteLength, 0);
  const known = first[ADDRESS] as number;
  const address = known === 0 ? mapShared(fd, BYTE_LENGTH).address : (known as Address);
  const memory = viewMemory(address, BYTE_LENGTH);
  new Float64Array(memory, 0, HEADER_LENGTH)[ADDRESS] = address;
  return memory;
}

/** Tells apart the tables of two versions of cuffi in a process. */
const LAYOUT = 2;

/**
 * The same in all workers of this process and in no other process. Others may send a file of any
 * name, but do not know the address of libc here.
 */
function memfdName(): string {
  const secret = `${process.pid} ${libcSymbol('getpid')} ${LAYOUT}`;
  return `cuffi-mappings-${sha256(secret).slice(0, 32)}`;
}
