/** What this process has shared, by which its own descriptors are found again. */

// On the object itself: a WeakMap with an entry for each allocation would keep the collector busy.
const GENERATION = Symbol('generation');

interface Shared {
  [GENERATION]?: number;
}

let last = 0;

const byName = new Map<string, WeakRef<object>>();
const LEAST_LIMIT = 1024;
/** Beyond it, the names of what was collected are forgotten: a finalizer for each would cost more. */
let limit = LEAST_LIMIT;

/** The number of an allocation that is shared: another one for each, for the life of the process. */
export function generationOf(allocation: object): number {
  const known = (allocation as Shared)[GENERATION];
  if (known !== undefined) return known;
  last += 1;
  (allocation as Shared)[GENERATION] = last;
  rememberExport(`memory ${last}`, allocation);
  return last;
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

/** What was shared by a name, where it still is. */
export const findExport = (name: string): object | undefined => byName.get(name)?.deref();
