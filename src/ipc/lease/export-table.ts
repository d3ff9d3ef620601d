import { IpcError } from '../../errors.ts';
import type { Stream } from '../../stream.ts';
import { ownerOf, streamOfObject } from '../shareable.ts';
import type { Shareable } from '../sharing/export.ts';
import { type Holder, Lease, leaseBook } from './lease.ts';

/**
 * What was lent over one connection: a lease for each object. Their numbers go with the value that
 * carries the objects, and are never used again.
 */
export class Lent {
  readonly #holder: Holder;
  readonly #leases = new Map<number, Lease>();
  #next = 0;

  constructor(holder: Holder) {
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
  has(object: Shareable): boolean {
    const { pid } = this.#holder;
    if (pid === process.pid) return true;
    return leaseBook
      .of(ownerOf(object))
      .some(
        (lease) =>
          (lease.holder === this.#holder || (pid > 0 && lease.holder.pid === pid)) &&
          lease.covers(object),
      );
  }

  /** A lease for each object. @throws ClosedError; then there is none */
  lend(objects: readonly Shareable[], stream: Stream | undefined): Lease[] {
    const made: Lease[] = [];
    try {
      for (const object of objects) {
        const lease = Lease.of(
          this.#next + made.length,
          object,
          this.#holder,
          stream ?? streamOfObject(object),
        );
        made.push(lease);
      }
    } catch (error) {
      for (const lease of made) lease.end();
      throw error;
    }
    this.#next += made.length;
    for (const lease of made) this.#leases.set(lease.id, lease);
    return made;
  }

  /** Whether a lease is in use: it was neither released, nor dropped before it went out. */
  isInUse(id: number): boolean {
    return this.#leases.has(id);
  }

  /** The lease that the other end speaks of. @throws IpcError where it has none by that number */
  find(id: number): Lease {
    const lease = this.#leases.get(id);
    if (!lease) throw new IpcError(`lease ${id} was already released, or was never sent`);
    return lease;
  }

  /** Ends leases: they were given back, or never went out. */
  end(leases: Iterable<Lease>): void {
    for (const lease of leases) this.endOne(lease);
  }

  endOne(lease: Lease): void {
    this.#leases.delete(lease.id);
    lease.end();
  }

  /** Ends all, as their holder is gone. */
  endAll(): void {
    this.end([...this.#leases.values()]);
  }
}
