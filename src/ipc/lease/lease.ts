import type { Context } from '../../context.ts';
import { type Resource, releaseOrWarn } from '../../lifetime.ts';
import type { Stream } from '../../stream.ts';
import {
  type AddressRange,
  byteLengthOf,
  contextOf,
  keepAlive,
  kindOf,
  ownerOf,
  rangeOf,
  type Shareable,
} from '../shareable.ts';

/** Who has an object by a lease. */
export interface LeaseHolder {
  readonly pid: number;
  /** In words, as `process 123`. */
  readonly name: string;
  /** Asks it to stop using what it has by a lease. */
  revoke(lease: number): void;
}

/** What keeps an object, for all who have it by way of one lease. */
class SharedKeepalive {
  readonly #removeKeepalive: () => void;
  #users = 0;

  constructor(removeKeepalive: () => void) {
    this.#removeKeepalive = removeKeepalive;
  }

  retain(): this {
    this.#users += 1;
    return this;
  }

  release(): void {
    this.#users -= 1;
    if (this.#users === 0) releaseOrWarn(this.#removeKeepalive);
  }
}

/** What a lease is of. */
interface LeasedObject {
  readonly kind: 'memory' | 'pool' | 'event';
  readonly byteLength: number;
  /** What is kept; it may be closed, and even collected. */
  readonly owner: WeakRef<Resource>;
  readonly context: Context | undefined;
  /** The stream that it was sent with: later work there comes behind that of its holder. */
  readonly stream: Stream | undefined;
  readonly keepalive: SharedKeepalive;
  /** What was lent of it; undefined for a pool and an event. */
  readonly range: AddressRange | undefined;
}

/** One object, kept for one process that it was sent to. */
export class Lease {
  readonly id: number;
  readonly holder: LeaseHolder;
  /** When it was sent, in milliseconds as of Date.now(). */
  readonly since = Date.now();
  readonly #object: LeasedObject;
  #isEnded = false;
  #isRevoked = false;
  /** Called when it ends. */
  onEnd: (() => void) | undefined;

  private constructor(id: number, holder: LeaseHolder, object: LeasedObject) {
    this.id = id;
    this.holder = holder;
    this.#object = object;
    object.keepalive.retain();
    leaseRegistry.add(this);
  }

  /** @throws ClosedError */
  static of(id: number, object: Shareable, holder: LeaseHolder, stream: Stream | undefined): Lease {
    return new Lease(id, holder, {
      kind: kindOf(object),
      byteLength: byteLengthOf(object),
      owner: new WeakRef(ownerOf(object)),
      context: contextOf(object),
      stream,
      keepalive: new SharedKeepalive(keepAlive(object, holder.name)),
      range: rangeOf(object),
    });
  }

  /** The same object for one whom its holder passes it on to. */
  forwardTo(holder: LeaseHolder): Lease {
    return new Lease(this.id, holder, this.#object);
  }

  get kind(): LeasedObject['kind'] {
    return this.#object.kind;
  }

  get byteLength(): number {
    return this.#object.byteLength;
  }

  get owner(): WeakRef<Resource> {
    return this.#object.owner;
  }

  /** Where work on it goes on here: the stream that it was sent with, while that is open. */
  get workLocation():
    | { readonly context: Context; readonly stream: Stream | undefined }
    | undefined {
    const { context, stream } = this.#object;
    if (!context) return undefined;
    return { context, stream: stream?.closed ? undefined : stream };
  }

  /** Whether nothing here but this keeps it: it was closed, or collected. */
  get isOrphaned(): boolean {
    return this.owner.deref()?.closed ?? true;
  }

  /** Whether what was lent is all of an object of the same owner, with no less access. */
  covers(object: Shareable): boolean {
    const asked = rangeOf(object);
    const { range } = this.#object;
    if (!asked || !range) return asked === range;
    return (
      asked.begin >= range.begin &&
      asked.end <= range.end &&
      (asked.access === 'read' || range.access === 'read-write')
    );
  }

  get isRevoked(): boolean {
    return this.#isRevoked;
  }

  /** Asks its holder, once, to use it no more. It ends when the holder has given it back. */
  revoke(): void {
    if (this.#isRevoked) return;
    this.#isRevoked = true;
    this.holder.revoke(this.id);
  }

  /** Its holder has given it back, or is gone. The second time does nothing. */
  end(): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    leaseRegistry.delete(this);
    this.#object.keepalive.release();
    this.onEnd?.();
  }
}

/** All leases of this process. */

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
  readonly orphaned: boolean;
  readonly revoked: boolean;
}

/** What `leases.stats()` answers. */
export interface LeasesStats {
  /** What others have, each thing once however many have it. */
  readonly byteLength: number;
  /** What is closed here, and kept for others. */
  readonly orphaned: { readonly count: number; readonly byteLength: number };
  readonly leases: readonly LeaseStats[];
}

// On the object itself: a WeakMap with an entry for each would keep the collector busy.
const LEASES = Symbol('leases');

interface WithLeases {
  [LEASES]?: Set<Lease>;
}

/** The leases that are out. */
class LeaseRegistry {
  readonly #leases = new Set<Lease>();

  add(lease: Lease): void {
    this.#leases.add(lease);
    const owner = lease.owner.deref() as WithLeases | undefined;
    if (!owner) return;
    owner[LEASES] ??= new Set();
    owner[LEASES].add(lease);
  }

  delete(lease: Lease): void {
    this.#leases.delete(lease);
    (lease.owner.deref() as WithLeases | undefined)?.[LEASES]?.delete(lease);
  }

  leasesOf(owner: object): Lease[] {
    return [...((owner as WithLeases)[LEASES] ?? [])];
  }

  /** Who keeps alive what is closed here. */
  get orphaned(): Lease[] {
    return [...this.#leases].filter((lease) => lease.isOrphaned);
  }

  stats(): LeasesStats {
    const all = [...this.#leases];
    const orphaned = this.orphaned;
    return {
      byteLength: distinctBytes(all),
      orphaned: { count: distinct(orphaned).length, byteLength: distinctBytes(orphaned) },
      leases: all.map((lease) => ({
        pid: lease.holder.pid,
        kind: lease.kind,
        byteLength: lease.byteLength,
        since: new Date(lease.since),
        orphaned: lease.isOrphaned,
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
export const leaseRegistry: LeaseRegistry = new LeaseRegistry();
