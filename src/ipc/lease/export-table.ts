import { IpcError } from '../../errors.ts';
import type { Stream } from '../../stream.ts';
import { defaultStreamOf, ownerOf, type Shareable } from '../shareable.ts';
import { Lease, type LeaseHolder, leaseRegistry } from './lease.ts';

/**
 * What was lent over one connection: a lease for each object. Their numbers go with the value that
 * carries the objects, and are never used again.
 */
export class ExportTable {
  readonly #holder: LeaseHolder;
  readonly #leases = new Map<number, Lease>();
  #next = 0;

  constructor(holder: LeaseHolder) {
    this.#holder = holder;
  }

  /** How many leases are out. */
  get size(): number {
    return this.#leases.size;
  }

  /**
   * Whether the other process has an object from here, or all of a range: by whichever connection, or
   * by way of another process that has passed it on. This process has all that is its own.
   */
  hasLeaseOn(object: Shareable): boolean {
    const { pid } = this.#holder;
    if (pid === process.pid) return true;
    return leaseRegistry
      .leasesOf(ownerOf(object))
      .some(
        (lease) =>
          (lease.holder === this.#holder || (pid > 0 && lease.holder.pid === pid)) &&
          lease.covers(object),
      );
  }

  /** A lease for each object. @throws ClosedError; then there is none */
  add(objects: readonly Shareable[], stream: Stream | undefined): Lease[] {
    const added: Lease[] = [];
    try {
      for (const object of objects) {
        const lease = Lease.of(
          this.#next + added.length,
          object,
          this.#holder,
          stream ?? defaultStreamOf(object),
        );
        added.push(lease);
      }
    } catch (error) {
      for (const lease of added) lease.end();
      throw error;
    }
    this.#next += added.length;
    for (const lease of added) this.#leases.set(lease.id, lease);
    return added;
  }

  /** Whether a lease is in use: it was neither released, nor dropped before it went out. */
  isInUse(id: number): boolean {
    return this.#leases.has(id);
  }

  /** The lease that the other end speaks of. @throws IpcError where it has none by that number */
  get(id: number): Lease {
    const lease = this.#leases.get(id);
    if (!lease) throw new IpcError(`lease ${id} was already released, or was never sent`);
    return lease;
  }

  /** Ends leases: they were given back, or never went out. */
  end(leases: Iterable<Lease>): void {
    for (const lease of leases) this.endLease(lease);
  }

  endLease(lease: Lease): void {
    this.#leases.delete(lease.id);
    lease.end();
  }

  /** Ends all, as their holder is gone. */
  endAll(): void {
    this.end([...this.#leases.values()]);
  }
}
