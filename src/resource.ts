/** What is opened is closed: the one `close()`, `closed`, `using`, owners and finalizers. */
import { inspect } from 'node:util';
import { ClosedError } from './errors.ts';

/** What outlives a resource's object: it knows how to release, and never refers to the object. */
interface Entry {
  readonly kind: string;
  readonly release: (() => void) | undefined;
  readonly owner: ResourceSet | undefined;
  /** Where the resource was opened, with CUFFI_TRACE=1. */
  readonly opened: string | undefined;
  closed: boolean;
  /** Why, where it was not its own `close()`. */
  reason: string | undefined;
}

const tracing = process.env['CUFFI_TRACE'] === '1';
let warned = false;

// A finalizer runs at a moment of V8's choosing: it only queues the release, which then runs
// between the turns of the main thread and pushes the context that it needs.
const finalizers = new FinalizationRegistry<Entry>((entry) => {
  if (entry.closed) return;
  if (tracing || !warned) {
    warned = true;
    process.emitWarning(`a ${entry.kind} was garbage collected without close()`, {
      code: 'CUFFI_LEAK',
      detail: entry.opened ?? 'CUFFI_TRACE=1 shows where each was opened.',
    });
  }
  setImmediate(() => closeEntry(entry, 'it was garbage collected'));
});

function closeEntry(entry: Entry, reason?: string): void {
  if (entry.closed) return;
  entry.closed = true;
  entry.reason = reason;
  entry.owner?.delete(entry);
  entry.release?.();
}

/** The open resources of one owner, in the order in which they were opened. */
export class ResourceSet {
  readonly #entries = new Set<Entry>();

  get size(): number {
    return this.#entries.size;
  }

  /** @internal */
  add(entry: Entry): void {
    this.#entries.add(entry);
  }

  /** @internal */
  delete(entry: Entry): void {
    this.#entries.delete(entry);
  }

  /** Closes all, newest first; with `release: false` only marks them, as their memory is gone. */
  closeAll(reason: string, { release }: { readonly release: boolean }): void {
    const errors: unknown[] = [];
    for (const entry of [...this.#entries].reverse()) {
      try {
        if (release) closeEntry(entry, reason);
        else {
          entry.closed = true;
          entry.reason = reason;
        }
      } catch (error) {
        errors.push(error);
      }
    }
    this.#entries.clear();
    if (errors.length > 0) throw errors[0];
  }
}

/** How a {@link Resource} is opened. */
export interface ResourceInit {
  /** The owner's set: closing the owner closes this. */
  readonly owner?: ResourceSet | undefined;
  /**
   * Gives the resource back to the driver; must not refer to the resource's object. Absent for
   * borrowed ones, which are forgotten instead.
   */
  readonly release?: (() => void) | undefined;
}

/** Something that is opened once and closed once. */
export abstract class Resource implements Disposable {
  readonly #entry: Entry;
  readonly #kind: string;

  protected constructor(kind: string, { owner, release }: ResourceInit) {
    this.#kind = kind;
    this.#entry = {
      kind,
      release,
      owner,
      opened: tracing ? new Error('opened').stack?.split('\n').slice(3).join('\n') : undefined,
      closed: false,
      reason: undefined,
    };
    owner?.add(this.#entry);
    if (release) finalizers.register(this, this.#entry, this.#entry);
  }

  /** Whether it was closed, by itself or through its owner. */
  get closed(): boolean {
    return this.#entry.closed;
  }

  /** Gives it back; the second time does nothing. */
  close(): void {
    if (this.#entry.closed) return;
    finalizers.unregister(this.#entry);
    closeEntry(this.#entry);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  toString(): string {
    return this.closed ? `${this.#kind} (closed)` : this.#kind;
  }

  [inspect.custom](): string {
    return this.toString();
  }

  /** @throws ClosedError after close */
  protected requireOpen(): void {
    if (this.closed) throw this.closedError();
  }

  /** @param reason why, where it is not closed by itself */
  protected closedError(reason = this.#entry.reason): ClosedError {
    const { opened } = this.#entry;
    return new ClosedError(
      `this ${this.#kind} is closed${reason ? `: ${reason}` : ''}${opened ? `\nopened at\n${opened}` : ''}`,
    );
  }
}
