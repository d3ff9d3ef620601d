import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { isShortage } from '../../../ffi/linux/libc.ts';
import type { Context } from '../../context.ts';
import { CuffiError, IpcError } from '../../errors.ts';
import { runOutsideCapture } from '../../graph-capture.ts';
import { type Resource, releaseOrWarn } from '../../lifetime.ts';
import { Stream } from '../../stream.ts';
import { ResetWatch } from '../reset-watch.ts';
import { knownFacts } from '../sharing/facts.ts';
import type { ImportLease } from '../sharing/kind.ts';
import { bufferOf, ownerOf, type Shareable } from '../sharing/kinds.ts';
import type { ConnectionTimeline } from '../timeline/connection-timeline.ts';
import { latest, type TimelinePoint } from '../timeline/words.ts';
import type { LeaseRelease } from '../wire/control-block.ts';
import { leaseRegistry } from './export-table.ts';
import type { PeerProcess } from './peer-process.ts';

/** The leases that this process has on objects of one peer, by number. */
export class ImportTable {
  readonly #timeline: ConnectionTimeline;
  readonly #owner: LeaseOwner;
  readonly #onChange: () => void;
  /**
   * Subtracted from the numbers of leases in Maps: the peer chooses them, V8 hashes numbers without
   * a seed, and thousands of one hash would make each access slow.
   */
  readonly #salt = Math.floor(Math.random() * 2 ** 30);
  readonly #links = new Map<number, number>();
  /** The open objects. Only their users keep them alive. Undefined until an object is opened. */
  readonly #open = new Map<number, WeakRef<ImportedResource> | undefined>();
  /** A context reset takes the open objects without a `close()` that would release the leases. */
  readonly #resets = new ResetWatch((context) => this.#onReset(context));
  #isEnded = false;
  #next = 0;
  #pendingReleases: LeaseRelease[] = [];

  /** @param onChange called when there is something to send to the peer */
  constructor(timeline: ConnectionTimeline, owner: LeaseOwner, onChange: () => void) {
    this.#timeline = timeline;
    this.#owner = owner;
    this.#onChange = onChange;
  }

  /** How many leases are in use, plus the pending releases. */
  get size(): number {
    return this.#open.size + this.#pendingReleases.length;
  }

  /** How many releases the peer has not been sent. */
  get pendingReleaseCount(): number {
    return this.#pendingReleases.length;
  }

  /**
   * Adds the leases of objects that have arrived. Values that the peer dropped leave gaps, but
   * numbers never repeat or decrease.
   *
   * @throws IpcError for a number that was used before
   */
  add(first: number, count: number): void {
    if (first < this.#next)
      throw new IpcError(`lease ${first} was sent after lease ${this.#next - 1}, or a second time`);
    this.#next = first + count;
    for (let id = first; id < this.#next; id++) this.#open.set(id - this.#salt, undefined);
  }

  /** Releases the leases of objects that arrived and are not opened. */
  releaseAll(first: number, count: number): void {
    for (let id = first; id < first + count; id++) this.release(id);
  }

  /** Returns the callbacks by which an object reports that it was closed and released. */
  importLease(id: number): ImportLease {
    return {
      closed: (context, streams) => runOutsideCapture(() => this.#onClosed(id, context, streams)),
      released: () => this.release(id),
    };
  }

  /** Records an opened object, for {@link revoke} and for forwarding. */
  setOpened(id: number, object: object): void {
    if (!this.#open.has(id - this.#salt)) return;
    const open = (bufferOf(object) ?? object) as ImportedResource;
    this.#open.set(id - this.#salt, new WeakRef(open));
    // Timelines belong to no context.
    if (open.context) this.#resets.add(open.context);
    // An object of this process that came back has no other owner.
    const facts = knownFacts(ownerOf(object as Shareable));
    if (!facts?.source) return;
    const owner: OwnerConnection = {
      process: this.#owner.process,
      requestForward: (...request) => this.#owner.requestForward(id, ...request),
      moved: (to) => {
        if (this.#open.has(id - this.#salt))
          this.#open.set(id - this.#salt, new WeakRef(to as ImportedResource));
      },
    };
    facts.owner = owner;
  }

  /**
   * Keeps the link of a forwarded object. Closing the link tells the owner that the object was
   * released.
   */
  addLink(id: number, link: number): void {
    if (this.#open.has(id - this.#salt)) this.#links.set(id - this.#salt, link);
    else discardFd(link);
  }

  /** Releases a lease, as nothing here uses the object any longer. The second call does nothing. */
  release(id: number): void {
    const key = id - this.#salt;
    if (!this.#open.delete(key)) return;
    const link = this.#links.get(key);
    this.#links.delete(key);
    if (link !== undefined) discardFd(link);
    const last = this.#pendingReleases.at(-1);
    if (last?.lease === id) this.#pendingReleases.pop();
    this.#pendingReleases.push({
      lease: id,
      isFinal: true,
      points: last?.lease === id ? last.points : [],
    });
    this.#stopIfUnused();
    this.#onChange();
  }

  /** Stops receiving leases. */
  end(): void {
    this.#isEnded = true;
    this.#stopIfUnused();
  }

  /**
   * Closes an object that the peer has revoked. @throws IpcError for a lease that was never sent
   */
  revoke(id: number, by: string): void {
    if (id >= this.#next) throw new IpcError(`lease ${id} was revoked, but was never sent`);
    const object = this.#open.get(id - this.#salt)?.deref();
    if (!object) return;
    // Also revokes the leases of processes that this one forwarded the object to.
    for (const lease of leaseRegistry.leasesOf(object)) lease.revoke();
    releaseOrWarn(() => object.invalidate(`${by} has revoked it`));
  }

  /** Puts the releases of a dropped message back in front. */
  restoreReleases(releases: readonly LeaseRelease[]): void {
    this.#pendingReleases = [...releases, ...this.#pendingReleases];
  }

  /** Takes the releases to send now, as many as fit in one message. */
  takeReleases(): readonly LeaseRelease[] {
    const all = this.#pendingReleases;
    let [end, points] = [0, 0];
    // The first entry always fits.
    while (
      end < all.length &&
      (end === 0 || (end < MAX_RELEASES_PER_MESSAGE && points < MAX_POINTS_PER_MESSAGE))
    ) {
      const { lease, points: behind } = all[end] as LeaseRelease;
      // A context reset also releases objects that are being forwarded. Their owner must get that
      // request first.
      if (this.#owner.hasUnsentForward(lease)) break;
      points += behind.length;
      end += 1;
    }
    // A dropped message puts this array back, so it must not change meanwhile.
    if (end === 0) return none;
    if (end < all.length) return all.splice(0, end);
    this.#pendingReleases = [];
    return all;
  }

  /**
   * Releases the objects of a context after its reset. For collected objects the context is
   * unknown. They are released only if all objects are in one context, as work of another context
   * may still use them.
   */
  #onReset(context: Context): void {
    const isOnly = this.#resets.size === 1;
    for (const [key, open] of [...this.#open]) {
      const object = open?.deref();
      if (object ? object.context === context : open && isOnly) this.release(key + this.#salt);
    }
  }

  #stopIfUnused(): void {
    if (this.#isEnded && this.#open.size === 0) this.#resets.stop();
  }

  #onClosed(
    id: number,
    context: Context,
    streams: readonly (Stream | undefined)[] | undefined,
  ): void {
    if (!this.#open.has(id - this.#salt)) return;
    const points = this.#pointsBehind(context, streams);
    if (points.length === 0) return;
    this.#pendingReleases.push({ lease: id, isFinal: false, points });
    this.#onChange();
  }

  /**
   * Returns no points in a lost context, where nothing runs, and if no descriptor is left for the
   * timeline page. The lease is then released once the host has seen the end of the work.
   */
  #pointsBehind(
    context: Context,
    streams: readonly (Stream | undefined)[] | undefined,
  ): TimelinePoint[] {
    try {
      // A stream that was closed with work in it can no longer be asked how far it is.
      if (!streams || streams.some((stream) => stream?.closed))
        return this.#timeline.pointsBehindContext(context);
      const points = streams.flatMap((stream) =>
        this.#timeline.pointsBehindStream(stream ?? Stream.legacyDefault({ context })),
      );
      return points.length > 1 ? latest(points) : points;
    } catch (error) {
      if (error instanceof CuffiError || isShortage(error)) return [];
      throw error;
    }
  }
}

// ---- The owners of imported objects ----

/**
 * The connection to the owner of an imported object. The owner is asked before the object is
 * forwarded.
 */
export interface OwnerConnection {
  readonly process: PeerProcess;
  /** Notes that another object has taken over what the object owns. */
  moved?(to: object): void;
  /**
   * Asks the owner to keep the object for a third process, too.
   *
   * @param ownerLink the owner's end of the link. The callee owns it from now on
   * @param recipientLink the third process's end, which remains the caller's
   */
  requestForward(
    pid: number,
    startTime: number,
    ownerLink: number,
    recipientLink: number,
  ): ForwardHandle;
}

/** A request that was queued for the owner. */
export interface ForwardHandle {
  /** Resolves when the owner keeps the object, or is gone. */
  readonly acknowledged: Promise<void>;
  /** Call it once, when the third process has released the object or did not get it. */
  release(): void;
}

/** The connection to the owner of an object; undefined for objects of this process. */
export const ownerConnectionOf = (object: Shareable): OwnerConnection | undefined =>
  knownFacts(ownerOf(object))?.owner as OwnerConnection | undefined;

// ---- Limits and parts ----

/** The limits of one message. An entry takes at least 10 bytes, a point 10. */
const MAX_RELEASES_PER_MESSAGE = 1024;
const MAX_POINTS_PER_MESSAGE = 1024;
const none: readonly LeaseRelease[] = [];

/** An imported object that is open in this process. */
type ImportedResource = Resource & { readonly context?: Context };

/** The peer as the owner of the leases of one connection. */
interface LeaseOwner {
  readonly process: PeerProcess;
  /** As {@link OwnerConnection.requestForward}, for the object of a lease. */
  requestForward(
    lease: number,
    ...request: Parameters<OwnerConnection['requestForward']>
  ): ForwardHandle;
  /** Whether a request for a lease is not sent yet. Until then the lease must not be released. */
  hasUnsentForward(lease: number): boolean;
}
