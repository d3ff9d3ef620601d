import type { Context } from '../../context.ts';
import type { Device } from '../../device.ts';
import { diagnostics } from '../../diagnostics.ts';
import { IpcError } from '../../errors.ts';
import { ReferenceCount, type Resource, releaseOrWarn } from '../../lifetime.ts';
import type { Stream } from '../../stream.ts';
import {
  type AnyFields,
  type HostKind,
  type IpcKind,
  isHostFields,
  type MemoryKind,
} from '../descriptor.ts';
import { factsOf, knownFacts } from '../sharing/facts.ts';
import type { AddressRange, Kind } from '../sharing/kind.ts';
import {
  byteLengthOf,
  contextOf,
  deviceOf,
  kindOf,
  kindOfFields,
  labelOf,
  ownerOf,
  rangeOf,
  type Shareable,
} from '../sharing/kinds.ts';
import { defaultStreamOf } from '../sharing/memory.ts';

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
    if (this.#holder.pid === process.pid) return true;
    return leaseRegistry
      .leasesOf(ownerOf(object))
      .some((lease) => this.#isHeldByPeer(lease) && lease.covers(object));
  }

  /**
   * Whether the peer holds a lease on an object that was closed here and then collected. Its export
   * had that name.
   */
  hasLeaseOnCollected(name: string): boolean {
    return leaseRegistry.all.some(
      (lease) => this.#isHeldByPeer(lease) && lease.isCollected && lease.exportName === name,
    );
  }

  #isHeldByPeer({ holder }: Lease): boolean {
    const { pid } = this.#holder;
    return holder === this.#holder || (pid > 0 && holder.pid === pid);
  }

  /**
   * Adds a lease for each object.
   *
   * @param exported what each object was exported as
   * @throws ClosedError; then none is added
   */
  add(
    objects: readonly Shareable[],
    stream: Stream | undefined,
    exported: readonly ExportedObject[] = [],
  ): Lease[] {
    const added: Lease[] = [];
    try {
      for (const object of objects) {
        const lease = Lease.of(
          this.#next + added.length,
          object,
          this.#holder,
          stream ?? defaultStreamOf(object),
          exported[added.length]?.descriptor,
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
    this.take(lease);
    lease.end();
  }

  /** Removes a lease that the caller ends. */
  take(lease: Lease): void {
    this.#leases.delete(lease.id);
  }

  /** Ends all leases, as their holder is gone. */
  endAll(): void {
    this.end([...this.#leases.values()]);
  }
}

/** The part of an exported object that a lease remembers. */
interface ExportedObject {
  readonly descriptor: AnyFields;
}

// ---- A lease ----

/** The process that holds a lease. */
export interface LeaseHolder {
  readonly pid: number;
  /** In words, such as `process 123`. */
  readonly name: string;
  /** Asks the holder to stop using the object of a lease. */
  revoke(lease: number): void;
}

/** Keeps one object alive for one process that it was sent to. */
export class Lease {
  readonly id: number;
  readonly holder: LeaseHolder;
  /** When the object was sent, in milliseconds as of Date.now(). */
  readonly since = Date.now();
  readonly #object: LeasedObject;
  #isEnded = false;
  #isRevoked = false;
  /** Called when the lease ends. */
  onEnd: (() => void) | undefined;

  private constructor(id: number, holder: LeaseHolder, object: LeasedObject) {
    this.id = id;
    this.holder = holder;
    this.#object = object;
    object.leases.add();
    leaseRegistry.add(this);
    if (diagnostics.leaseBegin.isOn) diagnostics.leaseBegin.publish(this.#message);
  }

  /** @throws ClosedError */
  static of(
    id: number,
    object: Shareable,
    holder: LeaseHolder,
    stream: Stream | undefined,
    descriptor: AnyFields | undefined,
  ): Lease {
    const kind = kindOf(object) as Kind;
    const leased = {
      kind,
      byteLength: byteLengthOf(object),
      owner: new WeakRef(ownerOf(object)),
      context: contextOf(object),
      device: deviceOf(object),
      range: rangeOf(object),
      stream,
      descriptor,
      release: kind.keep?.(object, holder.name) ?? object.addKeepalive(holder.name),
      leases: new ReferenceCount(),
    };
    return new Lease(id, holder, leased);
  }

  get #message(): { pid: number; kind: string; byteLength: number } {
    return { pid: this.holder.pid, kind: labelOf(this.kind), byteLength: this.byteLength };
  }

  /** Returns a lease of the same object for a process that its holder forwards it to. */
  forwardTo(holder: LeaseHolder): Lease {
    return new Lease(this.id, holder, this.#object);
  }

  get kind(): LeasedObject['kind'] {
    return this.#object.kind;
  }

  get byteLength(): number {
    return this.#object.byteLength;
  }

  get device(): Device | undefined {
    return this.#object.device;
  }

  get owner(): WeakRef<Resource> {
    return this.#object.owner;
  }

  /**
   * Where work on the object continues here: in the stream that it was sent with, while that is
   * open.
   */
  get workLocation():
    | { readonly context: Context; readonly stream: Stream | undefined }
    | undefined {
    const { context, stream } = this.#object;
    if (!context) return undefined;
    return { context, stream: stream?.closed ? undefined : stream };
  }

  /** Whether the object is closed or collected here, so that only leases keep it. */
  get isOrphaned(): boolean {
    return this.owner.deref()?.closed ?? true;
  }

  /** Whether the object was collected. */
  get isCollected(): boolean {
    return this.owner.deref() === undefined;
  }

  /** The name that the object was exported by; undefined if it had none. */
  get exportName(): string | undefined {
    const { descriptor } = this.#object;
    if (!descriptor || isHostFields(descriptor)) return undefined;
    return kindOfFields(descriptor).nameOf(descriptor);
  }

  /**
   * Whether the leased range contains all of another object of the same owner, with at least its
   * access.
   */
  covers(object: Shareable): boolean {
    const other = rangeOf(object);
    const { range } = this.#object;
    if (!other || !range) return other === range;
    return (
      other.begin >= range.begin &&
      other.end <= range.end &&
      (other.access === 'read' || range.access === 'read-write')
    );
  }

  get isRevoked(): boolean {
    return this.#isRevoked;
  }

  /**
   * Asks the holder, once, to stop using the object. The lease ends when the holder releases it.
   */
  revoke(): void {
    if (this.#isRevoked) return;
    this.#isRevoked = true;
    this.holder.revoke(this.id);
  }

  /** Ends the lease: its holder has released it or is gone. The second call does nothing. */
  end(): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    leaseRegistry.delete(this);
    if (diagnostics.leaseEnd.isOn)
      diagnostics.leaseEnd.publish({ ...this.#message, durationMs: Date.now() - this.since });
    if (this.#object.leases.remove()) releaseOrWarn(this.#object.release);
    this.onEnd?.();
  }
}

/** What kind of object it is, in one word. A signaler counts as a timeline. */
type ObjectKindName = 'memory' | 'pool' | Exclude<IpcKind | HostKind, MemoryKind | 'signaler'>;

/** What one process holds of this one. */
export interface LeaseStats {
  /** The process that holds it; 0 for a process of another pid namespace. */
  readonly pid: number;
  readonly kind: ObjectKindName;
  /** The size of the memory that is kept alive: the whole buffer, whatever part was sent. */
  readonly byteLength: number;
  /** When it was sent. */
  readonly since: Date;
  /** Whether it is closed here and kept alive only for that process. */
  readonly orphaned: boolean;
  readonly revoked: boolean;
}

/** The result of `leases.stats()`. */
export interface LeasesStats {
  /** The size of everything that other processes hold. Each object counts once. */
  readonly byteLength: number;
  /** What is closed here but kept alive for other processes. */
  readonly orphaned: { readonly count: number; readonly byteLength: number };
  readonly leases: readonly LeaseStats[];
}

/** The object of a lease, shared by all leases that forwarding derived from one. */
interface LeasedObject {
  readonly kind: Kind;
  readonly byteLength: number;
  /** The kept object. It may be closed, and even garbage collected. */
  readonly owner: WeakRef<Resource>;
  readonly context: Context | undefined;
  /** Undefined for host memory. */
  readonly device: Device | undefined;
  /** The stream that the object was sent with. Later work there runs behind the holder's work. */
  readonly stream: Stream | undefined;
  /** What it was exported as. */
  readonly descriptor: AnyFields | undefined;
  /** Ends the keeping, when the last of these leases ends. */
  readonly release: () => void;
  readonly leases: ReferenceCount;
  /** The shared range; undefined for a pool or an event. */
  readonly range: AddressRange | undefined;
}

// ---- All leases of this process ----

/** The leases that are in use. */
class LeaseRegistry {
  readonly #leases = new Set<Lease>();

  add(lease: Lease): void {
    this.#leases.add(lease);
    const owner = lease.owner.deref();
    if (!owner) return;
    const facts = factsOf(owner);
    facts.leases ??= new Set();
    facts.leases.add(lease);
  }

  delete(lease: Lease): void {
    this.#leases.delete(lease);
    const owner = lease.owner.deref();
    if (owner) knownFacts(owner)?.leases?.delete(lease);
  }

  leasesOf(owner: object): Lease[] {
    return [...((knownFacts(owner)?.leases ?? []) as Iterable<Lease>)];
  }

  /** The leases of objects that are closed here. */
  get orphaned(): Lease[] {
    return [...this.#leases].filter((lease) => lease.isOrphaned);
  }

  /** All leases that are in use. */
  get all(): readonly Lease[] {
    return [...this.#leases];
  }

  stats(): LeasesStats {
    const all = [...this.#leases];
    const orphaned = this.orphaned;
    return {
      byteLength: distinctBytes(all),
      orphaned: { count: distinct(orphaned).length, byteLength: distinctBytes(orphaned) },
      leases: all.map((lease) => ({
        pid: lease.holder.pid,
        kind: labelOf(lease.kind) as ObjectKindName,
        byteLength: lease.byteLength,
        since: new Date(lease.since),
        orphaned: lease.isOrphaned,
        revoked: lease.isRevoked,
      })),
    };
  }
}

/** Returns one lease of each object. Collected objects can no longer be told apart. */
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

/** The leases that this process has given. */
export const leaseRegistry: LeaseRegistry = new LeaseRegistry();
