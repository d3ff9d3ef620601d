import { inspect } from 'node:util';
import { ClosedError, CuffiError } from './errors.ts';
import { beginRelease, endRelease, isNews } from './lost-context.ts';

/** What a finalizer is told: the entry of the object that was collected, unless it was closed. */
export interface Will {
  entry: Entry | undefined;
}

/**
 * What an open object alone refers to: collected with it. Guards of closed objects are used again,
 * as registering and unregistering each object would cost more than all else that `close()` does.
 */
export interface Guard {
  readonly will: Will;
}

/** The name of it in its object, which copies and JSON leave out. */
export const life = Symbol('life');

/**
 * What a resource's object has to do with its entry. It has one shape, whatever the resource is, in
 * which V8 finds a #private field at once; in an object with so many subclasses it looks for it anew
 * at each access.
 */
export class Life {
  readonly #entry: Entry;
  #guard: Guard | undefined;

  constructor(entry: Entry, guard: Guard | undefined) {
    this.#entry = entry;
    this.#guard = guard;
  }

  get entry(): Entry {
    return this.#entry;
  }

  /** Whether the resource was closed, or is gone with its owner. */
  get isOver(): boolean {
    return isClosed(this.#entry);
  }

  /** Its guard, which it then has no more. */
  takeGuard(): Guard | undefined {
    const guard = this.#guard;
    this.#guard = undefined;
    return guard;
  }
}

/** What is opened is closed: the one `close()`, `closed`, `using`, and finalizers. */

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

/** What is open, in the order in which it was opened: closed with its owner, newest first. */

/** One who needs what a resource releases. */
export interface Holder {
  /** Who it is, in words. */
  readonly name: string;
  /**
   * Called when the resource is closed, of one who needs nothing while it is open. It may end its need
   * at once.
   */
  readonly closed?: (() => void) | undefined;
}

/**
 * Gives back what a resource had, and never refers to its object. Where there are many it is an object
 * that knows what it needs: a function would need a scope beside it.
 */
export type Release = (() => void) | { release(): void };

/** Runs a release. In a context that is known to be lost it fails quietly. */
function run(release: Release, owner: ResourceSet | undefined): void {
  beginRelease();
  try {
    if (typeof release === 'function') release();
    else release.release();
  } catch (error) {
    if (isNews(error, owner?.isOfLost ?? false)) throw error;
  } finally {
    endRelease();
  }
}

/** What outlives a resource's object: it knows how to release, and never refers to the object. */
export interface Entry {
  readonly kind: string;
  readonly release: Release | undefined;
  readonly owner: ResourceSet | undefined;
  /** The owner's generation when it was opened. */
  readonly generation: number;
  /** Where the resource was opened, with CUFFI_TRACE=1. */
  readonly opened: string | undefined;
  closed: boolean;
  /** Who still needs what it releases; made by the first. */
  holders: Set<Holder> | undefined;
  /** Why, where it was not its own `close()`. */
  reason: string | undefined;
  /** Its neighbours in the owner's set: the one opened before, and the one after. */
  older: Entry | undefined;
  newer: Entry | undefined;
}

/** An entry of what is being opened; it is in no set yet. */
const newEntry = (
  kind: string,
  owner: ResourceSet | undefined,
  release: Release | undefined,
  opened: string | undefined,
): Entry => ({
  kind,
  release,
  owner,
  generation: owner?.generation ?? 0,
  opened,
  closed: false,
  holders: undefined,
  reason: undefined,
  older: undefined,
  newer: undefined,
});

/** Whether it is gone with its owner: the driver has released it. */
const isAbandoned = ({ owner, generation }: Entry): boolean =>
  owner !== undefined && owner.generation !== generation;

/** Whether it was closed, or is gone with its owner. */
const isClosed = (entry: Entry): boolean => entry.closed || isAbandoned(entry);

/** Closes it, unless it is closed. */
function closeEntry(entry: Entry, reason: string): void {
  if (!isClosed(entry)) closeOpen(entry, reason);
}

/**
 * How often something was closed. What calls the caller's code between its looking at objects and its
 * use of them (a getter may close one) looks at them again where this has changed.
 */
export let closings = 0;

/** Closes what is open; what somebody still needs is released by the last of them. */
function closeOpen(entry: Entry, reason?: string): void {
  closings += 1;
  entry.closed = true;
  entry.reason = reason;
  if (entry.release === undefined) return;
  entry.owner?.delete(entry);
  if (isHeld(entry)) for (const { closed } of [...(entry.holders ?? [])]) closed?.();
  else run(entry.release, entry.owner);
}

/** Whether somebody still needs what it releases. */
const isHeld = ({ holders }: Entry): boolean => holders !== undefined && holders.size > 0;

/** One less that needs what a closed resource releases. */
function letGo(entry: Entry, holder: Holder): void {
  if (!entry.holders?.delete(holder) || isHeld(entry)) return;
  if (entry.closed && entry.release && !isAbandoned(entry)) run(entry.release, entry.owner);
}

/** The open resources of one owner, in the order in which they were opened. */
export class ResourceSet {
  readonly #within: ResourceSet | undefined;
  readonly #isListed: boolean;
  readonly #isOfLost: () => boolean;
  /** In the owner's own set, while this one is listed there. */
  #standIn: Entry | undefined;
  #newest: Entry | undefined;
  #size = 0;
  #generation = 0;
  #reason: string | undefined;

  /**
   * @param within the set that the owner itself is in: what is abandoned there is so here too
   * @param isListed whether all here is closed with what is there, as the owner itself is not
   * @param isOfLost whether the context that all here is of is known to be lost; `within` knows it else
   */
  constructor(
    within?: ResourceSet,
    isListed = false,
    isOfLost: () => boolean = () => within?.isOfLost ?? false,
  ) {
    this.#within = within;
    this.#isListed = isListed;
    this.#isOfLost = isOfLost;
  }

  /** Whether the context that all here is of is known to be lost. */
  get isOfLost(): boolean {
    return this.#isOfLost();
  }

  /** How many are open that own something; what is only borrowed is not listed. */
  get size(): number {
    return this.#size;
  }

  /** Counts the calls of {@link abandonAll}: what was opened under another count is gone. */
  get generation(): number {
    const within = this.#within;
    return within === undefined ? this.#generation : this.#generation + within.generation;
  }

  /** Why what was opened before is gone. */
  get reason(): string | undefined {
    return this.#reason ?? this.#within?.reason;
  }

  /** @internal */
  add(entry: Entry): void {
    const newest = this.#newest;
    entry.older = newest;
    if (newest) newest.newer = entry;
    this.#newest = entry;
    this.#size += 1;
    if (this.#isListed && this.#size === 1) this.#list();
  }

  /** @internal The entry must be in this set, and of its generation. */
  delete(entry: Entry): void {
    const { older, newer } = entry;
    if (older) older.newer = newer;
    if (newer) newer.older = older;
    else this.#newest = older;
    entry.older = undefined;
    entry.newer = undefined;
    this.#size -= 1;
    const standIn = this.#standIn;
    if (!standIn || this.#size > 0) return;
    this.#standIn = undefined;
    if (!isClosed(standIn)) standIn.owner?.delete(standIn);
  }

  /** Closes all, newest first; throws the first error when all were tried. */
  closeAll(reason: string): void {
    const entries: Entry[] = [];
    for (let entry = this.#newest; entry; entry = entry.older) entries.push(entry);
    tryAll(entries.map((entry) => () => closeEntry(entry, reason)));
  }

  #list(): void {
    const closeAll = (): void => this.closeAll(standIn.reason ?? 'its owner was closed');
    const standIn = newEntry('ResourceSet', this.#within, closeAll, undefined);
    this.#standIn = standIn;
    this.#within?.add(standIn);
  }

  /** Makes all closed without releasing anything, as the driver has already. */
  abandonAll(reason: string): void {
    closings += 1;
    // One that somebody keeps must not keep its neighbours.
    for (let entry = this.#newest; entry; ) {
      const { older } = entry;
      entry.older = undefined;
      entry.newer = undefined;
      entry = older;
    }
    this.#newest = undefined;
    this.#size = 0;
    this.#generation += 1;
    this.#reason = reason;
  }
}

/** Steps that are all taken, whatever fails: giving back must not stop half-way. */

/** Takes each step in order; throws the first error when all were tried. */
export function tryAll(steps: Iterable<() => void>): void {
  const errors: unknown[] = [];
  for (const step of steps) {
    try {
      step();
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length > 0) throw errors[0];
}
