/**
 * Memory of this process that its other worker threads may use. Each worker has its own JavaScript
 * state, but the driver's addresses are the same in all. A thread that opens the memory by its
 * descriptor keeps it. It is freed when the sharing thread and all others have closed it.
 */

import type { CUdeviceptr } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { type DeviceBuffer, keepMemoryAlive } from '../../memory/buffer.ts';
import {
  addThreadExport,
  closeThreadExport,
  growThreadExport,
  hasThreadExport,
  releaseThreadExport,
  removeThreadExport,
  threadExportSize,
  useThreadExport,
} from '../../waits/worker-tables.ts';
import { type DescriptorFields, isMemoryFields, type MemoryFields } from '../descriptor.ts';
import { ResetWatch } from '../reset-watch.ts';
import { blockedError, type OpenBlocker } from './blockers.ts';
import { type ImportedMapping, MappingTable, type MappingUse, tableByContext } from './mapping.ts';

interface PublishedRecord {
  readonly at: number;
  readonly context: Context;
  byteLength: number;
}

/** The records of memory that this thread has shared with the others, by the memory's name. */
const published = new Map<string, PublishedRecord>();

/** How often memory that other threads still use is checked after it was closed here. */
const POLL_PERIOD_MS = 10;

/** A reset frees all memory, even if other threads use it. */
const resetWatch = new ResetWatch((context) => {
  for (const [name, { at, context: own }] of published) {
    if (own !== context) continue;
    removeThreadExport(at);
    forget(name, context);
  }
});

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
    growThreadExport(known.at, baseByteLength);
    return;
  }
  const at = addThreadExport({
    id: generation,
    piece: pieceOf(descriptor),
    base: (begin - byteOffset) as CUdeviceptr,
    byteLength: baseByteLength,
  });
  published.set(name, { at, context, byteLength: baseByteLength });
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
function tryUnpublish(name: string): boolean {
  const record = published.get(name);
  if (!record) return true;
  if (!closeThreadExport(record.at)) return false;
  forget(name, record.context);
  return true;
}

function unpublishWhenUnused(name: string, removeKeepalive: () => void): void {
  const timer = setInterval(() => {
    if (!tryUnpublish(name)) return;
    clearInterval(timer);
    releaseOrWarn(removeKeepalive);
  }, POLL_PERIOD_MS);
  timer.unref();
}

/** Forgets a record. A context without any is no longer watched, and so may be collected. */
function forget(name: string, context: Context): void {
  published.delete(name);
  for (const other of published.values()) if (other.context === context) return;
  resetWatch.remove(context);
}

interface ThreadMapping extends ImportedMapping {
  readonly generation: number;
  readonly at: number;
}

/** Memory of other threads that is open in this one, by name. Nothing is mapped for it. */
const mappings = tableByContext(
  () =>
    new MappingTable<ThreadMapping>(({ generation, at }) => releaseThreadExport(at, generation), {
      mayBlock: false,
    }),
);

/** Whether another thread of this process has shared the memory and still has it open. */
export const isFromOtherThread = (descriptor: DescriptorFields): descriptor is MemoryFields =>
  isMemoryFields(descriptor) &&
  descriptor.generation !== 0 &&
  !published.has(nameOf(descriptor)) &&
  hasThreadExport(descriptor.generation, pieceOf(descriptor));

/**
 * Adds a use of memory that another thread has shared.
 *
 * @throws IpcError if it no longer exists
 */
export function useFromOtherThread(
  context: Context,
  descriptor: MemoryFields,
): MappingUse<ImportedMapping> {
  const { generation } = descriptor;
  const { mapping, release } = mappings(context).use(nameOf(descriptor), 0, context, () => {
    const found = useThreadExport(generation, pieceOf(descriptor));
    if (!found) throw blockedError(exportGoneBlocker);
    return { ...found, generation, context, epoch: context.epoch, byteLength: 0 };
  });
  const byteLength = threadExportSize(mapping.at);
  return { mapping: { ...mapping, byteLength }, release };
}

/** Why an object that a descriptor of this process names cannot be opened: no thread has it open. */
export const exportGoneBlocker = {
  code: 'exporter-gone',
  reason:
    'this descriptor was made by this very process, and its object no longer exists: it was ' +
    'closed, or it is a pool, an event or memory of another library that another thread shared',
  hint:
    'Keep shared objects open until the other thread has opened them, and use a pool or an event in the ' +
    'thread that made it.',
} as const satisfies OpenBlocker;
