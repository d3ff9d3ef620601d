import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { isShortage } from '../../../ffi/linux/libc.ts';
import type { Context } from '../../context.ts';
import { CuffiError, IpcError } from '../../errors.ts';
import { outsideCapture } from '../../graph-capture.ts';
import { type Resource, releaseQuietly } from '../../lifetime.ts';
import type { Stream } from '../../stream.ts';
import { ResetWatch } from '../reset-watch.ts';
import { bufferOf, isImported } from '../shareable.ts';
import type { Loan } from '../sharing/ownership.ts';
import type { Ordering } from '../timeline/ordering.ts';
import type { Point } from '../timeline/point.ts';
import type { LeaseRange, Returned } from '../wire/control-block.ts';
import { type Adopting, type Asked, rememberLender } from './forward.ts';
import { leaseBook } from './lease.ts';
import type { PeerProcess } from './peer-process.ts';

/** Of one message: each entry has 10 bytes and more, each point 10. */
const MAX_ENTRIES = 1024;
const MAX_POINTS = 1024;
const none: readonly Returned[] = [];

/** What is open here. */
type OpenHere = Resource & { readonly context: Context };

/** The other end, as the lender of what it has lent by number. */
interface LeaseLender {
  readonly process: PeerProcess;
  adopt(...asked: Parameters<Adopting['ask']>): Asked;
  /** As {@link Adopting.isNeeded}. */
  isNeeded(lease: number): boolean;
}

/** What the other end of one connection has lent to this process, by number. */
export class Borrowed {
  readonly #ordering: Ordering;
  readonly #lender: LeaseLender;
  readonly #changed: () => void;
  readonly #links = new Map<number, number>();
  /** What is open here: nothing keeps it alive but its users. */
  readonly #open = new Map<number, WeakRef<OpenHere> | undefined>();
  /** A reset takes what is open, without a `close()` that would give it back. */
  readonly #resets = new ResetWatch((context) => this.#wasReset(context));
  #isOver = false;
  #next = 0;
  #returned: Returned[] = [];

  /** @param changed called when there is something to be told to the other end */
  constructor(ordering: Ordering, lender: LeaseLender, changed: () => void) {
    this.#ordering = ordering;
    this.#lender = lender;
    this.#changed = changed;
  }

  /** How much is open here, or given back without the other end knowing it. */
  get size(): number {
    return this.#open.size + this.#returned.length;
  }

  /** How much is given back without the other end knowing it. */
  get untold(): number {
    return this.#returned.length;
  }

  /**
   * Notes the leases of objects that have arrived. Values that the other end dropped leave gaps, but
   * no number comes twice or late.
   *
   * @throws IpcError for a number that was used before
   */
  receive({ first, count }: LeaseRange): void {
    if (first < this.#next)
      throw new IpcError(`lease ${first} was sent after lease ${this.#next - 1}, or a second time`);
    this.#next = first + count;
    for (let id = first; id < this.#next; id++) this.#open.set(id, undefined);
  }

  /** Releases the leases of objects that arrived and are not opened. */
  refuse({ first, count }: LeaseRange): void {
    for (let id = first; id < first + count; id++) this.giveBack(id);
  }

  /** What is told how the object of a number ends. */
  loan(id: number): Loan {
    return {
      closed: (context, stream) => outsideCapture(() => this.#closed(id, context, stream)),
      returned: () => this.giveBack(id),
    };
  }

  /** Remembers what was opened, for {@link revoke} and for who it is passed on to. */
  opened(id: number, object: object): void {
    if (!this.#open.has(id)) return;
    const buffer = bufferOf(object);
    const open = (buffer ?? object) as OpenHere;
    this.#open.set(id, new WeakRef(open));
    this.#resets.add(open.context);
    // What this process made, and got back, is its own.
    if (!isImported(object)) return;
    rememberLender(buffer?.whole ?? object, {
      process: this.#lender.process,
      adopt: (...asked) => this.#lender.adopt(id, ...asked),
    });
  }

  /** The maker of an object sees by its link that it is given back. */
  keepLink(id: number, link: number): void {
    if (this.#open.has(id)) this.#links.set(id, link);
    else discardFd(link);
  }

  /** Nothing here reaches it. The second time does nothing. */
  giveBack(id: number): void {
    if (!this.#open.delete(id)) return;
    const link = this.#links.get(id);
    this.#links.delete(id);
    if (link !== undefined) discardFd(link);
    const last = this.#returned.at(-1);
    if (last?.lease === id) this.#returned.pop();
    this.#returned.push({ lease: id, isOver: true, points: last?.lease === id ? last.points : [] });
    this.#forget();
    this.#changed();
  }

  /** Nothing more comes. */
  end(): void {
    this.#isOver = true;
    this.#forget();
  }

  /** Closes what the other end wants back. @throws IpcError for what it never lent */
  revoke(id: number, by: string): void {
    if (id >= this.#next) throw new IpcError(`lease ${id} is revoked, and was never given`);
    const object = this.#open.get(id)?.deref();
    if (!object) return;
    // Those who have it by way of this process, too.
    for (const lease of leaseBook.of(object)) lease.revoke();
    releaseQuietly(() => object.closeBecause(`${by} has revoked it`));
  }

  /** Takes back what was to be told in a message that was dropped: it goes first next time. */
  restoreReturned(returned: readonly Returned[]): void {
    this.#returned = [...returned, ...this.#returned];
  }

  /** What the other end is to be told now: as much as goes in one message. */
  takeReturned(): readonly Returned[] {
    const all = this.#returned;
    let [end, points] = [0, 0];
    // The first is never too much.
    while (end < all.length && (end === 0 || (end < MAX_ENTRIES && points < MAX_POINTS))) {
      const { lease, points: behind } = all[end] as Returned;
      // A reset gives back also what is being passed on: who has lent it must hear of that before.
      if (this.#lender.isNeeded(lease)) break;
      points += behind.length;
      end += 1;
    }
    // A message that is dropped gives this back: it must not change meanwhile.
    if (end === 0) return none;
    if (end < all.length) return all.splice(0, end);
    this.#returned = [];
    return all;
  }

  /**
   * Of what was collected nobody knows where it was, unless all is in one context: in another one
   * work may use it still.
   */
  #wasReset(context: Context): void {
    const isOnly = this.#resets.size === 1;
    for (const [id, open] of [...this.#open]) {
      const object = open?.deref();
      if (object ? object.context === context : open && isOnly) this.giveBack(id);
    }
  }

  #forget(): void {
    if (this.#isOver && this.#open.size === 0) this.#resets.end();
  }

  #closed(id: number, context: Context, stream: Stream | undefined): void {
    if (!this.#open.has(id)) return;
    const points = this.#behind(context, stream);
    if (points.length === 0) return;
    this.#returned.push({ lease: id, isOver: false, points });
    this.#changed();
  }

  /**
   * None in a context that is lost, where nothing runs, and where no descriptor is left for the page
   * of counters: then it is given back when the host has seen the end of the work.
   */
  #behind(context: Context, stream: Stream | undefined): Point[] {
    try {
      return stream ? this.#ordering.behindStream(stream) : this.#ordering.behindContext(context);
    } catch (error) {
      if (error instanceof CuffiError || isShortage(error)) return [];
      throw error;
    }
  }
}
