/** What is opened is closed: the one `close()`, `closed`, `using`, and finalizers. */
import { inspect } from 'node:util';
import { ClosedError, CuffiError } from './errors.ts';
import { type Guard, Life, life, type Will } from './life.ts';
import { beginRelease, endRelease, isNews } from './lost.ts';
import {
  closeEntry,
  closeOpen,
  type Entry,
  isAbandoned,
  isClosed,
  isHeld,
  letGo,
  newEntry,
  type Release,
  type ResourceSet,
} from './resource-set.ts';

const tracing = process.env['CUFFI_TRACE'] === '1';
let warned = false;

const spareGuards: Guard[] = [];
const MAX_SPARE_GUARDS = 1024;

// A finalizer runs at a moment of V8's choosing: it only queues the release, which then runs
// between the turns of the main thread and pushes the context that it needs.
const finalizers = new FinalizationRegistry<Will>(({ entry }) => {
  if (entry === undefined || isClosed(entry)) return;
  if (tracing || !warned) {
    warned = true;
    process.emitWarning(`a ${entry.kind} was garbage collected without close()`, {
      code: 'CUFFI_LEAK',
      detail: entry.opened ?? 'CUFFI_TRACE=1 shows where each was opened.',
    });
  }
  setImmediate(() => releaseQuietly(() => closeEntry(entry, 'it was garbage collected')));
});

function guard(entry: Entry): Guard {
  const spare = spareGuards.pop();
  if (spare) {
    spare.will.entry = entry;
    return spare;
  }
  const made: Guard = { will: { entry } };
  finalizers.register(made, made.will);
  return made;
}

function giveBack(used: Guard): void {
  used.will.entry = undefined;
  if (spareGuards.length < MAX_SPARE_GUARDS) spareGuards.push(used);
}

/**
 * Runs a release whose failure nobody is there to catch: it becomes a warning, unless it only says
 * again that a context is lost.
 *
 * @param isOfLost whether what is released is of a context that is known to be lost
 */
export function releaseQuietly(release: () => void, isOfLost = false): void {
  beginRelease();
  try {
    release();
  } catch (error) {
    if (isNews(error, isOfLost))
      process.emitWarning(`a release failed: ${error}`, { code: 'CUFFI_RELEASE' });
  } finally {
    endRelease();
  }
}

/** How a {@link Resource} is opened. */
export interface ResourceInit {
  /** The owner's set: when the owner goes, this is closed. */
  readonly owner?: ResourceSet | undefined;
  /**
   * Gives the resource back to the driver; must not refer to the resource's object. Absent for
   * borrowed ones, which are forgotten instead.
   */
  readonly release?: Release | undefined;
}

/** Something that is opened once and closed once. */
export abstract class Resource implements Disposable {
  /** @internal */
  protected readonly [life]: Life;
  readonly #kind: string;

  protected constructor(kind: string, { owner, release }: ResourceInit) {
    this.#kind = kind;
    const opened = tracing ? new Error('opened').stack?.split('\n').slice(3).join('\n') : undefined;
    const entry = newEntry(kind, owner, release, opened);
    // What owns nothing needs no list: it is gone with its object.
    if (release) owner?.add(entry);
    this[life] = new Life(entry, release && guard(entry));
  }

  /** Whether it was closed, by itself or through its owner. */
  get closed(): boolean {
    return this[life].isOver;
  }

  /** Whether `value` is a resource of that kind: cheaper than instanceof, and needs no import. */
  static is(value: unknown, kind: string): boolean {
    return typeof value === 'object' && value !== null && #kind in value && value.#kind === kind;
  }

  /**
   * @internal Puts off what closing gives back until the function that this answers is called. A
   * closed one counts as closed all the same.
   *
   * @param name who needs it, in words
   * @param closed called when it is closed, for one who may need nothing then
   * @throws ClosedError
   */
  retain(name = 'a handle that is open', closed?: () => void): () => void {
    this.requireOpen();
    const entry = this[life].entry;
    const holder = { name, closed };
    entry.holders ??= new Set();
    entry.holders.add(holder);
    return () => letGo(entry, holder);
  }

  /** @internal Who needs what it gives back, in words: each once. */
  get holders(): string[] {
    const needing = [...(this[life].entry.holders ?? [])].filter(({ closed }) => !closed);
    return [...new Set(needing.map(({ name }) => name))];
  }

  /**
   * What another object is made of that owns what this one does from then on. This one counts as
   * closed, and gives nothing back.
   *
   * @param reason what whoever uses it afterwards is told
   * @throws CuffiError while it is retained, ClosedError
   */
  protected handOver(reason: string): ResourceInit {
    this.requireOpen();
    const entry = this[life].entry;
    if (isHeld(entry))
      throw new CuffiError(
        `this ${this.#kind} is held by ${this.holders.join(', ')}: that must give it back first`,
      );
    const { owner, release } = entry;
    this.#dropGuard();
    if (release) owner?.delete(entry);
    entry.closed = true;
    entry.reason = reason;
    return { owner, release };
  }

  /** Gives it back; the second time does nothing. */
  close(): void {
    this.#close();
  }

  /** @internal As {@link close}, for a reason that later uses are told. */
  closeBecause(reason: string): void {
    this.#close(reason);
  }

  #close(reason?: string): void {
    const entry = this[life].entry;
    if (isClosed(entry)) return;
    this.#dropGuard();
    closeOpen(entry, reason);
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

  #dropGuard(): void {
    const guard = this[life].takeGuard();
    if (guard) giveBack(guard);
  }

  /** @throws ClosedError after close */
  protected requireOpen(): void {
    if (this.closed) throw this.closedError();
  }

  protected closedError(): ClosedError {
    const { owner, opened } = this[life].entry;
    const reason = isAbandoned(this[life].entry) ? owner?.reason : this[life].entry.reason;
    return new ClosedError(
      `this ${this.#kind} is closed${reason ? `: ${reason}` : ''}${opened ? `\nopened at\n${opened}` : ''}`,
    );
  }
}
