/**
 * Memory of this process that its other worker threads may use. Each worker has its own JavaScript
 * state, but the driver's addresses are the same in all. A thread that opens the memory by its
 * descriptor keeps it. It is freed when the sharing thread and all others have closed it.
 */

import type { CUdeviceptr } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { type DeviceBuffer, keepMemoryAlive } from '../../memory/buffer.ts';
import { withExportsTable } from '../../worker-counts.ts';
import { type DescriptorFields, isMemoryFields, type MemoryFields } from '../descriptor.ts';
import { ResetWatch } from '../reset-watch.ts';
import { type Mapping, MappingTable, type MappingUse, tableByContext } from './mapping.ts';
import { blockedError, type OpenBlocker } from './support.ts';

/**
 * A record is six numbers: the export id (0 for a free record), the index of the first piece, the
 * address, the size in bytes, how many threads use it, and whether the sharing thread has closed
 * it. The sharing thread counts as a user until all others have closed it.
 */
const RECORD_LENGTH = 6;
const PIECE = 1;
const ADDRESS = 2;
const BYTE_LENGTH = 3;
const USERS = 4;
const CLOSED = 5;
/** The first record is a header: where the used records end. */
const END_OFFSET = 0;

interface PublishedRecord {
  readonly at: number;
  readonly context: Context;
  byteLength: number;
}

/** The records that this thread has shared with the others, by name. */
const published = new Map<string, PublishedRecord>();
const freeRecords: number[] = [];

/** How often memory that other threads still use is checked after it was closed here. */
const POLL_PERIOD_MS = 10;

/** A reset frees all memory, even if other threads use it. */
const resetWatch = new ResetWatch((context) => {
  for (const [name, { context: own }] of published)
    if (own === context) withExportsTable((table) => removeRecord(table, name));
});
/** How many records each watched context has. Without one, it is not kept from being collected. */
const recordCounts = new Map<Context, number>();

const pieceOf = (descriptor: MemoryFields): number =>
  'firstPiece' in descriptor ? descriptor.firstPiece : 0;

const nameOf = (descriptor: MemoryFields): string =>
  `${descriptor.generation} ${pieceOf(descriptor)}`;

/**
 * Lets the other threads of this process find the memory of a descriptor while it is open here.
 *
 * @param buffer memory of this thread
 * @param begin the address of the first byte of the descriptor's range
 * @throws ClosedError
 */
export function publish(buffer: DeviceBuffer, begin: number, descriptor: MemoryFields): void {
  const { generation, byteOffset, baseByteLength } = descriptor;
  const { context, root } = buffer;
  // This thread cannot keep memory that it did not allocate.
  if (generation === 0 || root.origin !== 'allocated') return;
  const name = nameOf(descriptor);
  const known = published.get(name);
  if (known) {
    // Virtual memory may have grown.
    if (known.byteLength >= baseByteLength) return;
    known.byteLength = baseByteLength;
    withExportsTable((table) => {
      table[known.at + BYTE_LENGTH] = baseByteLength;
    });
    return;
  }
  withExportsTable((table) => {
    const at = freeRecords.pop() ?? ((table[END_OFFSET] as number) || RECORD_LENGTH);
    if (at + RECORD_LENGTH > table.length)
      throw new IpcError('too many allocations are shared with other worker threads');
    table[at + BYTE_LENGTH] = baseByteLength;
    table[END_OFFSET] = Math.max(table[END_OFFSET] as number, at + RECORD_LENGTH);
    table[at + PIECE] = pieceOf(descriptor);
    table[at + ADDRESS] = begin - byteOffset;
    table[at + USERS] = 1;
    table[at + CLOSED] = 0;
    table[at] = generation;
    published.set(name, { at, context, byteLength: baseByteLength });
  });
  recordCounts.set(context, (recordCounts.get(context) ?? 0) + 1);
  resetWatch.add(context);
  const removeKeepalive = keepMemoryAlive(buffer, 'other worker threads', () => {
    if (tryUnpublish(name)) removeKeepalive();
    else unpublishWhenUnused(name, removeKeepalive);
  });
}

/**
 * Marks memory as closed in this thread. If no other thread uses it, removes its record and returns
 * true.
 */
const tryUnpublish = (name: string): boolean =>
  withExportsTable((table) => {
    const at = published.get(name)?.at;
    if (at === undefined) return true;
    table[at + CLOSED] = 1;
    if ((table[at + USERS] as number) > 1) return false;
    removeRecord(table, name);
    return true;
  });

function unpublishWhenUnused(name: string, removeKeepalive: () => void): void {
  const timer = setInterval(() => {
    if (!tryUnpublish(name)) return;
    clearInterval(timer);
    releaseOrWarn(removeKeepalive);
  }, POLL_PERIOD_MS);
  timer.unref();
}

function removeRecord(table: Float64Array, name: string): void {
  const record = published.get(name);
  if (!record) return;
  const { at, context } = record;
  table[at] = 0;
  published.delete(name);
  freeRecords.push(at);
  const count = (recordCounts.get(context) ?? 0) - 1;
  recordCounts.set(context, count);
  if (count > 0) return;
  recordCounts.delete(context);
  resetWatch.remove(context);
}

interface ThreadMapping extends Mapping {
  readonly generation: number;
  readonly at: number;
}

/** Memory of other threads that is open in this one, by name. Nothing is mapped for it. */
const mappings = tableByContext(
  () =>
    new MappingTable<ThreadMapping>(
      ({ generation, at }) =>
        withExportsTable((table) => {
          if (table[at] === generation) table[at + USERS] = (table[at + USERS] as number) - 1;
        }),
      { mayBlock: false },
    ),
);

/** Whether another thread of this process has shared the memory and still has it open. */
export const isFromOtherThread = (descriptor: DescriptorFields): descriptor is MemoryFields =>
  isMemoryFields(descriptor) &&
  descriptor.generation !== 0 &&
  !published.has(nameOf(descriptor)) &&
  withExportsTable((table) => findRecord(table, descriptor) !== undefined);

/**
 * Adds a use of memory that another thread has shared.
 *
 * @throws IpcError if it no longer exists
 */
export function useFromOtherThread(
  context: Context,
  descriptor: MemoryFields,
): MappingUse<Mapping> {
  const { generation } = descriptor;
  const { mapping, release } = mappings(context).use(nameOf(descriptor), 0, context, () =>
    withExportsTable((table) => {
      const at = findRecord(table, descriptor);
      if (at === undefined) throw blockedError(exportGoneBlocker);
      table[at + USERS] = (table[at + USERS] as number) + 1;
      const base = table[at + ADDRESS] as CUdeviceptr;
      return { generation, at, context, epoch: context.epoch, base, byteLength: 0 };
    }),
  );
  const byteLength = withExportsTable((table) => table[mapping.at + BYTE_LENGTH] as number);
  return { mapping: { ...mapping, byteLength }, release };
}

/** Returns the record of memory that its sharing thread has not closed. */
function findRecord(table: Float64Array, descriptor: MemoryFields): number | undefined {
  const end = table[END_OFFSET] as number;
  const piece = pieceOf(descriptor);
  for (let at = RECORD_LENGTH; at < end; at += RECORD_LENGTH)
    if (table[at] === descriptor.generation && table[at + PIECE] === piece)
      return table[at + CLOSED] === 0 ? at : undefined;
  return undefined;
}

/** Why an object that a descriptor of this process names cannot be opened: no thread has it open. */
export const exportGoneBlocker = {
  code: 'exporter-gone',
  reason:
    'this descriptor was made by this very process, and what it names no longer exists: it was ' +
    'closed, or it is a pool, an event or memory of another library that another thread shared',
  hint:
    'Keep shared objects open until the other thread has opened them, and use a pool or an event in the ' +
    'thread that made it.',
} as const satisfies OpenBlocker;
