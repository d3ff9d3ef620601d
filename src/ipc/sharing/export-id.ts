/** The objects that this process has exported, so that its own descriptors can be resolved. */
import { randomUint48 } from '../../memory/random-id.ts';
import type { IpcDescriptor } from '../descriptor.ts';

// Stored on the object: a WeakMap with an entry for each allocation would slow down garbage
// collection.
const EXPORT_ID = Symbol('generation');

interface WithExportId {
  [EXPORT_ID]?: number;
}

const exportsByName = new Map<string, WeakRef<object>>();
const MIN_SWEEP_THRESHOLD = 1024;
/**
 * Above this size, names of collected objects are removed. A finalizer for each would cost more.
 */
let sweepThreshold = MIN_SWEEP_THRESHOLD;

/**
 * Returns the number of an exported allocation, unique during the life of the process. It is
 * random, so that a process that was not given it cannot name the allocation.
 */
export function exportIdOf(allocation: object): number {
  const known = (allocation as WithExportId)[EXPORT_ID];
  if (known !== undefined) return known;
  let id = randomUint48();
  while (exportsByName.has(`memory ${id}`)) id = randomUint48();
  (allocation as WithExportId)[EXPORT_ID] = id;
  rememberExport(`memory ${id}`, allocation);
  return id;
}

/** Registers an exported object by name until it is collected. */
export function rememberExport(name: string, object: object): void {
  if (exportsByName.get(name)?.deref() === object) return;
  exportsByName.set(name, new WeakRef(object));
  if (exportsByName.size > sweepThreshold) sweepCollected();
}

function sweepCollected(): void {
  for (const [name, object] of exportsByName)
    if (object.deref() === undefined) exportsByName.delete(name);
  sweepThreshold = Math.max(MIN_SWEEP_THRESHOLD, 2 * exportsByName.size);
}

/** The name that a descriptor of this process was registered by. */
export function nameOfExport(descriptor: IpcDescriptor): string {
  if (descriptor.kind === 'event') return `event ${descriptor.handle}`;
  if (descriptor.kind === 'pool' && descriptor.handle === null) return `pool ${descriptor.pool}`;
  return `memory ${descriptor.generation}`;
}

/** The object that was exported by that name, if it still exists. */
export const findExport = (name: string): object | undefined => exportsByName.get(name)?.deref();
