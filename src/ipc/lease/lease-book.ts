/** All leases of this process. */
import type { Lease } from './lease.ts';

/** What a process has of another's. */
export interface LeaseStats {
  /** The process that has it; 0 for one of another pid namespace. */
  readonly pid: number;
  readonly kind: 'memory' | 'pool' | 'event';
  /** Of all that is kept for it: the whole buffer, whatever part was sent. */
  readonly byteLength: number;
  /** When it was sent. */
  readonly since: Date;
  /** Whether it is closed here, and kept for that process alone. */
  readonly limbo: boolean;
  readonly revoked: boolean;
}

/** What `leases.stats()` answers. */
export interface LeasesStats {
  /** What others have, each thing once however many have it. */
  readonly byteLength: number;
  /** What is closed here, and kept for others. */
  readonly limbo: { readonly count: number; readonly byteLength: number };
  readonly leases: readonly LeaseStats[];
}

// On the object itself: a WeakMap with an entry for each would keep the collector busy.
const LEASES = Symbol('leases');

interface Owner {
  [LEASES]?: Set<Lease>;
}

/** The leases that are out. */
class LeaseBook {
  readonly #leases = new Set<Lease>();

  add(lease: Lease): void {
    this.#leases.add(lease);
    const owner = lease.owner.deref() as Owner | undefined;
    if (!owner) return;
    owner[LEASES] ??= new Set();
    owner[LEASES].add(lease);
  }

  delete(lease: Lease): void {
    this.#leases.delete(lease);
    (lease.owner.deref() as Owner | undefined)?.[LEASES]?.delete(lease);
  }

  of(owner: object): Lease[] {
    return [...((owner as Owner)[LEASES] ?? [])];
  }

  /** Who keeps alive what is closed here. */
  get limbo(): Lease[] {
    return [...this.#leases].filter((lease) => lease.isLimbo);
  }

  stats(): LeasesStats {
    const all = [...this.#leases];
    const limbo = this.limbo;
    return {
      byteLength: distinctBytes(all),
      limbo: { count: distinct(limbo).length, byteLength: distinctBytes(limbo) },
      leases: all.map((lease) => ({
        pid: lease.holder.pid,
        kind: lease.kind,
        byteLength: lease.byteLength,
        since: new Date(lease.since),
        limbo: lease.isLimbo,
        revoked: lease.isRevoked,
      })),
    };
  }
}

/** One lease of each thing; things that were collected are told apart no more. */
function distinct(leases: readonly Lease[]): Lease[] {
  const seen = new Set<object>();
  return leases.filter(({ owner }) => {
    const object = owner.deref() ?? owner;
    if (seen.has(object)) return false;
    seen.add(object);
    return true;
  });
}

const distinctBytes = (leases: readonly Lease[]): number =>
  distinct(leases).reduce((sum, { byteLength }) => sum + byteLength, 0);

/** Those of this process. */
export const leaseBook: LeaseBook = new LeaseBook();
