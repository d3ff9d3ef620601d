import type { Context } from '../../context.ts';
import { releaseQuietly } from '../../resource.ts';
import type { Stream } from '../../stream.ts';
import type { Shareable } from '../export.ts';
import { leaseBook } from './lease-book.ts';
import { byteLengthOf, contextOf, kindOf, ownerOf, retain } from './shared-object.ts';

/** Who has an object by a lease. */
export interface Holder {
  readonly pid: number;
  /** In words, as `process 123`. */
  readonly name: string;
  /** Asks it to stop using what it has by a lease. */
  revoke(lease: number): void;
}

/** One object, kept for one process that it was sent to. */
export class Lease {
  readonly id: number;
  readonly holder: Holder;
  readonly kind: 'memory' | 'pool' | 'event';
  readonly byteLength: number;
  /** When it was sent, in milliseconds as of Date.now(). */
  readonly since = Date.now();
  /** What is kept; it may be closed, and even collected. */
  readonly owner: WeakRef<object>;
  readonly context: Context | undefined;
  /** The stream that it was sent with: later work there comes behind that of its holder. */
  readonly stream: Stream | undefined;
  readonly #drop: () => void;
  readonly #isClosed: () => boolean;
  #isOver = false;
  #isRevoked = false;

  /** @throws ClosedError */
  constructor(id: number, object: Shareable, holder: Holder, stream: Stream | undefined) {
    this.id = id;
    this.holder = holder;
    this.kind = kindOf(object);
    this.byteLength = byteLengthOf(object);
    this.context = contextOf(object);
    this.stream = stream;
    const owner = ownerOf(object);
    const weak = new WeakRef(owner);
    this.owner = weak;
    this.#isClosed = () => weak.deref()?.closed ?? true;
    this.#drop = retain(object, holder.name);
    leaseBook.add(this);
  }

  /** Whether nothing here but this keeps it: it was closed, or collected. */
  get isLimbo(): boolean {
    return this.#isClosed();
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
    if (this.#isOver) return;
    this.#isOver = true;
    leaseBook.delete(this);
    releaseQuietly(this.#drop);
  }
}
