import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { isShortage } from '../../../ffi/linux/libc.ts';
import type { Context } from '../../context.ts';
import { CuffiError, IpcError } from '../../errors.ts';
import { runOutsideCapture } from '../../graph-capture.ts';
import { type Resource, releaseOrWarn } from '../../lifetime.ts';
import type { Stream } from '../../stream.ts';
import { ResetWatch } from '../reset-watch.ts';
import { bufferOf, isImported } from '../shareable.ts';
import type { ImportLease } from '../sharing/ownership.ts';
import type { TimelinePoint } from '../timeline/point.ts';
import type { Timeline } from '../timeline/timeline.ts';
import type { LeaseRange, LeaseRelease } from '../wire/control-block.ts';
import { type ForwardHandle, type ForwardRequester, setOwnerConnection } from './forward.ts';
import { leaseRegistry } from './lease.ts';
import type { PeerProcess } from './peer-process.ts';

/** Of one message: each entry has 10 bytes and more, each point 10. */
const MAX_RELEASES_PER_MESSAGE = 1024;
const MAX_POINTS_PER_MESSAGE = 1024;
const none: readonly LeaseRelease[] = [];

/** What is open here. */
type ImportedResource = Resource & { readonly context: Context };

/** The other end, as the lender of what it has lent by number. */
interface LeaseOwner {
  readonly process: PeerProcess;
  requestForward(...asked: Parameters<ForwardRequester['request']>): ForwardHandle;
  /** As {@link ForwardRequester.hasUnsent}. */
  hasUnsentForward(lease: number): boolean;
}

/** What the other end of one connection has lent to this process, by number. */
export class ImportTable {
  readonly #timeline: Timeline;
  readonly #owner: LeaseOwner;
  readonly #onChange: () => void;
  readonly #links = new Map<number, number>();
  /** What is open here: nothing keeps it alive but its users. */
  readonly #open = new Map<number, WeakRef<ImportedResource> | undefined>();
  /** A reset takes what is open, without a `close()` that would give it back. */
  readonly #resets = new ResetWatch((context) => this.#onReset(context));
  #isEnded = false;
  #next = 0;
  #pendingReleases: LeaseRelease[] = [];

  /** @param onChange called when there is something to be told to the other end */
  constructor(timeline: Timeline, owner: LeaseOwner, onChange: () => void) {
    this.#timeline = timeline;
    this.#owner = owner;
    this.#onChange = onChange;
  }

  /** How much is open here, or given back without the other end knowing it. */
  get size(): number {
    return this.#open.size + this.#pendingReleases.length;
  }

  /** How much is given back without the other end knowing it. */
  get pendingReleaseCount(): number {
    return this.#pendingReleases.length;
  }

  /**
   * Notes the leases of objects that have arrived. Values that the other end dropped leave gaps, but
   * no number comes twice or late.
   *
   * @throws IpcError for a number that was used before
   */
  add({ first, count }: LeaseRange): void {
    if (first < this.#next)
      throw new IpcError(`lease ${first} was sent after lease ${this.#next - 1}, or a second time`);
    this.#next = first + count;
    for (let id = first; id < this.#next; id++) this.#open.set(id, undefined);
  }

  /** Releases the leases of objects that arrived and are not opened. */
  releaseAll({ first, count }: LeaseRange): void {
    for (let id = first; id < first + count; id++) this.release(id);
  }

  /** What is told how the object of a number ends. */
  importLease(id: number): ImportLease {
    return {
      closed: (context, stream) => runOutsideCapture(() => this.#onClosed(id, context, stream)),
      released: () => this.release(id),
    };
  }

  /** Remembers what was opened, for {@link revoke} and for who it is passed on to. */
  setOpened(id: number, object: object): void {
    if (!this.#open.has(id)) return;
    const buffer = bufferOf(object);
    const open = (buffer ?? object) as ImportedResource;
    this.#open.set(id, new WeakRef(open));
    this.#resets.add(open.context);
    // What this process made, and got back, is its own.
    if (!isImported(object)) return;
    setOwnerConnection(buffer?.root ?? object, {
      process: this.#owner.process,
      requestForward: (...asked) => this.#owner.requestForward(id, ...asked),
    });
  }

  /** The maker of an object sees by its link that it is given back. */
  addLink(id: number, link: number): void {
    if (this.#open.has(id)) this.#links.set(id, link);
    else discardFd(link);
  }

  /** Nothing here reaches it. The second time does nothing. */
  release(id: number): void {
    if (!this.#open.delete(id)) return;
    const link = this.#links.get(id);
    this.#links.delete(id);
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

  /** Nothing more comes. */
  end(): void {
    this.#isEnded = true;
    this.#stopIfUnused();
  }

  /** Closes what the other end wants back. @throws IpcError for what it never lent */
  revoke(id: number, by: string): void {
    if (id >= this.#next) throw new IpcError(`lease ${id} is revoked, and was never given`);
    const object = this.#open.get(id)?.deref();
    if (!object) return;
    // Those who have it by way of this process, too.
    for (const lease of leaseRegistry.leasesOf(object)) lease.revoke();
    releaseOrWarn(() => object.invalidate(`${by} has revoked it`));
  }

  /** Takes back what was to be told in a message that was dropped: it goes first next time. */
  restoreReleases(returned: readonly LeaseRelease[]): void {
    this.#pendingReleases = [...returned, ...this.#pendingReleases];
  }

  /** What the other end is to be told now: as much as goes in one message. */
  takeReleases(): readonly LeaseRelease[] {
    const all = this.#pendingReleases;
    let [end, points] = [0, 0];
    // The first is never too much.
    while (
      end < all.length &&
      (end === 0 || (end < MAX_RELEASES_PER_MESSAGE && points < MAX_POINTS_PER_MESSAGE))
    ) {
      const { lease, points: behind } = all[end] as LeaseRelease;
      // A reset gives back also what is being passed on: who has lent it must hear of that before.
      if (this.#owner.hasUnsentForward(lease)) break;
      points += behind.length;
      end += 1;
    }
    // A message that is dropped gives this back: it must not change meanwhile.
    if (end === 0) return none;
    if (end < all.length) return all.splice(0, end);
    this.#pendingReleases = [];
    return all;
  }

  /**
   * Of what was collected nobody knows where it was, unless all is in one context: in another one
   * work may use it still.
   */
  #onReset(context: Context): void {
    const isOnly = this.#resets.size === 1;
    for (const [id, open] of [...this.#open]) {
      const object = open?.deref();
      if (object ? object.context === context : open && isOnly) this.release(id);
    }
  }

  #stopIfUnused(): void {
    if (this.#isEnded && this.#open.size === 0) this.#resets.stop();
  }

  #onClosed(id: number, context: Context, stream: Stream | undefined): void {
    if (!this.#open.has(id)) return;
    const points = this.#pointsBehind(context, stream);
    if (points.length === 0) return;
    this.#pendingReleases.push({ lease: id, isFinal: false, points });
    this.#onChange();
  }

  /**
   * None in a context that is lost, where nothing runs, and where no descriptor is left for the page
   * of counters: then it is given back when the host has seen the end of the work.
   */
  #pointsBehind(context: Context, stream: Stream | undefined): TimelinePoint[] {
    try {
      return stream
        ? this.#timeline.pointsBehindStream(stream)
        : this.#timeline.pointsBehindContext(context);
    } catch (error) {
      if (error instanceof CuffiError || isShortage(error)) return [];
      throw error;
    }
  }
}
