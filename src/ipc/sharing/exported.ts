/** The objects that this process has exported, so that its own descriptors can be resolved. */

import { randomUint48 } from '../../memory/random-id.ts';
import type { DescriptorFields } from '../descriptor.ts';
import { factsOf } from './facts.ts';

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
  const facts = factsOf(allocation);
  if (facts.exportId !== undefined) return facts.exportId;
  let id = randomUint48();
  while (exportsByName.has(`memory ${id}`)) id = randomUint48();
  facts.exportId = id;
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

/** The name that the object of a descriptor of this process was registered by. */
export function nameOfExport(descriptor: DescriptorFields): string {
  if (descriptor.kind === 'event') return `event ${descriptor.handle}`;
  if (descriptor.kind === 'pool' && descriptor.handle === null) return `pool ${descriptor.pool}`;
  return `memory ${descriptor.generation}`;
}

/** The objects that were exported and still exist. */
export const exportedObjects = (): object[] =>
  [...exportsByName.values()].flatMap((reference) => reference.deref() ?? []);

/** The object that was exported by that name, if it still exists. */
export const findExport = (name: string): object | undefined => exportsByName.get(name)?.deref();
