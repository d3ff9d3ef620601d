/** The objects of this process that others may use, for `cuffi ls`. */
import { type Lease, leaseRegistry } from '../lease/export-table.ts';
import { exportedObjects } from '../sharing/facts.ts';
import type { Kind } from '../sharing/kind.ts';
import {
  byteLengthOf,
  deviceOf,
  isShareable,
  kindOf,
  labelOf,
  type Shareable,
} from '../sharing/kinds.ts';

/** A process that has an object, by its leases. */
export interface HolderFacts {
  /** 0 for a process of another pid namespace. */
  readonly pid: number;
  /** For how long it has had the object, in milliseconds: since the first lease. */
  readonly ageMs: number;
  /** Whether it was asked to stop using the object, or a part of it. */
  readonly isRevoked: boolean;
  /** How many times it has the object, or parts of it. */
  readonly leases: number;
}

/** An object that was shared, and who has it. */
export interface SharedObject {
  readonly kind: string;
  readonly byteLength: number;
  /** The UUID of its device; undefined for host memory. */
  readonly device?: string | undefined;
  /** Whether it is closed in its own process and kept for its holders. */
  readonly isOrphaned: boolean;
  /** The processes that got it over a connection. Who opened a descriptor is not known. */
  readonly holders: readonly HolderFacts[];
}

/** Returns what this process shares, the largest first. Asks the driver for nothing but UUIDs. */
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
      device: deviceOf(object)?.uuid,
      isOrphaned: false,
      holders: [],
    }));
  return [...leased, ...unheld].sort((a, b) => b.byteLength - a.byteLength);
}

function ofLeases(leases: readonly Lease[], now: number): SharedObject {
  const [{ kind, byteLength, device, isOrphaned }] = leases as [Lease];
  // A connection to a process of another pid namespace does not tell which other ones it has.
  const byHolder = new Map<unknown, Lease[]>();
  for (const lease of leases) {
    const holder = lease.holder.pid || lease.holder;
    byHolder.set(holder, [...(byHolder.get(holder) ?? []), lease]);
  }
  const holders = [...byHolder.values()].map((own) => ({
    pid: (own[0] as Lease).holder.pid,
    ageMs: Math.max(0, now - Math.min(...own.map(({ since }) => since))),
    isRevoked: own.some(({ isRevoked }) => isRevoked),
    leases: own.length,
  }));
  return { kind: labelOf(kind), byteLength, device: device?.uuid, isOrphaned, holders };
}
