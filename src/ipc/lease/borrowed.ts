import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import { type Resource, releaseQuietly } from '../../resource.ts';
import type { Stream } from '../../stream.ts';
import type { Loan } from '../loan.ts';
import type { Returned } from '../peer/tail.ts';
import type { Ordering } from '../points/ordering.ts';
import type { Point } from '../points/point.ts';
import { bufferOf } from './shared-object.ts';

/** Of one message: each entry has 10 bytes and more, each point 10. */
const MAX_ENTRIES = 1024;
const MAX_POINTS = 1024;

/** What the other end of one connection has lent to this process, by number. */
export class Borrowed {
  readonly #ordering: Ordering;
  readonly #changed: () => void;
  /** What is open here: nothing keeps it alive but its users. */
  readonly #open = new Map<number, WeakRef<Resource> | undefined>();
  #next = 0;
  #returned: Returned[] = [];

  /** @param changed called when there is something to be told to the other end */
  constructor(ordering: Ordering, changed: () => void) {
    this.#ordering = ordering;
    this.#changed = changed;
  }

  /** How much is open here, or given back without the other end knowing it. */
  get size(): number {
    return this.#open.size + this.#returned.length;
  }

  /** The first number of so many objects that have come. */
  number(count: number): number {
    const first = this.#next;
    this.#next += count;
    for (let id = first; id < this.#next; id++) this.#open.set(id, undefined);
    return first;
  }

  /** Objects that have come are not opened. */
  refuse(count: number): void {
    const first = this.number(count);
    for (let id = first; id < first + count; id++) this.giveBack(id);
  }

  /** What is told how the object of a number ends. */
  loan(id: number): Loan {
    return {
      closed: (context, stream) => this.#closed(id, context, stream),
      returned: () => this.giveBack(id),
    };
  }

  /** Remembers what was opened, for {@link revoke}. */
  opened(id: number, object: object): void {
    if (this.#open.has(id))
      this.#open.set(id, new WeakRef((bufferOf(object) ?? object) as Resource));
  }

  /** Nothing here reaches it. The second time does nothing. */
  giveBack(id: number): void {
    if (!this.#open.delete(id)) return;
    const last = this.#returned.at(-1);
    if (last?.lease === id) this.#returned.pop();
    this.#returned.push({ lease: id, isOver: true, points: last?.lease === id ? last.points : [] });
    this.#changed();
  }

  /** Closes what the other end wants back. @throws IpcError for what it never lent */
  revoke(id: number, by: string): void {
    if (id >= this.#next) throw new IpcError(`lease ${id} is revoked, and was never given`);
    const object = this.#open.get(id)?.deref();
    if (object) releaseQuietly(() => object.closeBecause(`${by} has revoked it`));
  }

  /** What the other end is to be told: as much as goes in one message. */
  takeReturned(): Returned[] {
    let points = 0;
    const fits = ({ points: more }: Returned, at: number): boolean => {
      points += more.length;
      return at === 0 || (at < MAX_ENTRIES && points < MAX_POINTS);
    };
    const end = this.#returned.findIndex((entry, at) => !fits(entry, at));
    return this.#returned.splice(0, end < 0 ? this.#returned.length : end);
  }

  #closed(id: number, context: Context, stream: Stream | undefined): void {
    if (!this.#open.has(id)) return;
    const points = this.#behind(context, stream);
    if (points.length === 0) return;
    this.#returned.push({ lease: id, isOver: false, points });
    this.#changed();
  }

  /** In a context that is lost nothing runs any more: there is nothing to come behind. */
  #behind(context: Context, stream: Stream | undefined): Point[] {
    try {
      return stream ? this.#ordering.behindStream(stream) : this.#ordering.behindContext(context);
    } catch {
      return [];
    }
  }
}
