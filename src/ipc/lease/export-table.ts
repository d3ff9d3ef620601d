import { IpcError } from '../../errors.ts';
import type { Stream } from '../../stream.ts';
import { defaultStreamOf, ownerOf, type Shareable } from '../sharing/kinds.ts';
import { Lease, type LeaseHolder, leaseRegistry } from './lease.ts';

/**
 * The leases of the objects that were sent over one connection. Their numbers travel with the value
 * and are never reused.
 */
export class ExportTable {
  readonly #holder: LeaseHolder;
  readonly #leases = new Map<number, Lease>();
  #next = 0;

  constructor(holder: LeaseHolder) {
    this.#holder = holder;
  }

  /** How many leases are in use. */
  get size(): number {
    return this.#leases.size;
  }

  /**
   * Whether the peer already holds a lease on an object, or on all of a range. It may have the
   * lease from any connection, or through a process that forwarded it. This process has everything
   * of its own.
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

  /** Adds a lease for each object. @throws ClosedError; then none is added */
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

  /** Whether a lease is in use: neither released nor dropped before it was sent. */
  isInUse(id: number): boolean {
    return this.#leases.has(id);
  }

  /** Returns a lease by its number. @throws IpcError if no lease has it */
  get(id: number): Lease {
    const lease = this.#leases.get(id);
    if (!lease) throw new IpcError(`lease ${id} was already released, or was never sent`);
    return lease;
  }

  /** Ends leases that were released or never sent. */
  end(leases: Iterable<Lease>): void {
    for (const lease of leases) this.endLease(lease);
  }

  endLease(lease: Lease): void {
    this.#leases.delete(lease.id);
    lease.end();
  }

  /** Ends all leases, as their holder is gone. */
  endAll(): void {
    this.end([...this.#leases.values()]);
  }
}
