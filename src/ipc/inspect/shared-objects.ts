/** The objects of this process that others may use, for `cuffi ls`. */
import { type Lease, leaseRegistry } from '../lease/export-table.ts';
import { exportedObjects } from '../sharing/facts.ts';
import type { Kind } from '../sharing/kind.ts';
import { byteLengthOf, isShareable, kindOf, labelOf, type Shareable } from '../sharing/kinds.ts';

/** A process that has an object, by its lease. */
export interface HolderFacts {
  /** 0 for a process of another pid namespace. */
  readonly pid: number;
  /** For how long it has had the object, in milliseconds. */
  readonly ageMs: number;
  readonly isRevoked: boolean;
}

/** An object that was shared, and who has it. */
export interface SharedObject {
  readonly kind: string;
  readonly byteLength: number;
  /** Whether it is closed in its own process and kept for its holders. */
  readonly isOrphaned: boolean;
  /** The processes that got it over a connection. Who opened a descriptor is not known. */
  readonly holders: readonly HolderFacts[];
}

/** Returns what this process shares, the largest first. Asks no driver. */
export function sharedObjects(): SharedObject[] {
  const now = Date.now();
  const byOwner = new Map<object, Lease[]>();
  for (const lease of leaseRegistry.all) {
    const owner = lease.owner.deref() ?? lease.owner;
    byOwner.set(owner, [...(byOwner.get(owner) ?? []), lease]);
  }
  const leased = [...byOwner.values()].map((leases) => ofLeases(leases, now));
  const unheld = exportedObjects()
    .filter((object): object is Shareable => isShareable(object) && !object.closed)
    .filter((object) => !byOwner.has(object))
    .map((object) => ({
      kind: labelOf(kindOf(object) as Kind),
      byteLength: byteLengthOf(object),
      isOrphaned: false,
      holders: [],
    }));
  return [...leased, ...unheld].sort((a, b) => b.byteLength - a.byteLength);
}

function ofLeases(leases: readonly Lease[], now: number): SharedObject {
  const [{ kind, byteLength, isOrphaned }] = leases as [Lease];
  const holders = leases.map(({ holder, since, isRevoked }) => ({
    pid: holder.pid,
    ageMs: Math.max(0, now - since),
    isRevoked,
  }));
  return { kind: labelOf(kind), byteLength, isOrphaned, holders };
}
