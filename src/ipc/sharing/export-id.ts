/** What this process has shared, by which its own descriptors are found again. */
import { randomUint48 } from '../../memory/random-id.ts';
import type { IpcDescriptor } from '../descriptor.ts';

// On the object itself: a WeakMap with an entry for each allocation would keep the collector busy.
const EXPORT_ID = Symbol('generation');

interface WithExportId {
  [EXPORT_ID]?: number;
}

const exportsByName = new Map<string, WeakRef<object>>();
const MIN_SWEEP_THRESHOLD = 1024;
/** Beyond it, the names of what was collected are forgotten: a finalizer for each would cost more. */
let sweepThreshold = MIN_SWEEP_THRESHOLD;

/**
 * The number of an allocation that is shared: another one for each, for the life of the process. It
 * is random: who was not given it cannot name what another process has.
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

/** Remembers, until it is collected, what was shared by a name. */
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

/** The name of what a descriptor of this process is of. */
export function nameOfExport(descriptor: IpcDescriptor): string {
  if (descriptor.kind === 'event') return `event ${descriptor.handle}`;
  if (descriptor.kind === 'pool' && descriptor.handle === null) return `pool ${descriptor.pool}`;
  return `memory ${descriptor.generation}`;
}

/** What was shared by a name, where it still is. */
export const findExport = (name: string): object | undefined => exportsByName.get(name)?.deref();
