/** What this process has shared, by which its own descriptors are found again. */
import { shareNumber } from '../../memory/share-id.ts';
import type { IpcDescriptor } from '../descriptor.ts';

// On the object itself: a WeakMap with an entry for each allocation would keep the collector busy.
const GENERATION = Symbol('generation');

interface Shared {
  [GENERATION]?: number;
}

const byName = new Map<string, WeakRef<object>>();
const LEAST_LIMIT = 1024;
/** Beyond it, the names of what was collected are forgotten: a finalizer for each would cost more. */
let limit = LEAST_LIMIT;

/**
 * The number of an allocation that is shared: another one for each, for the life of the process. It
 * is random: who was not given it cannot name what another process has.
 */
export function generationOf(allocation: object): number {
  const known = (allocation as Shared)[GENERATION];
  if (known !== undefined) return known;
  let made = shareNumber();
  while (byName.has(`memory ${made}`)) made = shareNumber();
  (allocation as Shared)[GENERATION] = made;
  rememberExport(`memory ${made}`, allocation);
  return made;
}

/** Remembers, until it is collected, what was shared by a name. */
export function rememberExport(name: string, object: object): void {
  if (byName.get(name)?.deref() === object) return;
  byName.set(name, new WeakRef(object));
  if (byName.size > limit) forgetCollected();
}

function forgetCollected(): void {
  for (const [name, object] of byName) if (object.deref() === undefined) byName.delete(name);
  limit = Math.max(LEAST_LIMIT, 2 * byName.size);
}

/** The name of what a descriptor of this process is of. */
export function nameOfExport(descriptor: IpcDescriptor): string {
  if (descriptor.kind === 'event') return `event ${descriptor.handle}`;
  if (descriptor.kind === 'pool' && descriptor.handle === null) return `pool ${descriptor.pool}`;
  return `memory ${descriptor.generation}`;
}

/** What was shared by a name, where it still is. */
export const findExport = (name: string): object | undefined => byName.get(name)?.deref();
