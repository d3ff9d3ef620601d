import { inspect } from 'node:util';
import { ClosedError, CuffiError } from './errors.ts';
import { beginRelease, endRelease, shouldReport } from './lost-context.ts';

/** What a finalizer is told: the entry of the object that was collected, unless it was closed. */
export interface FinalizerInput {
  entry: ResourceState | undefined;
}

/**
 * What an open object alone refers to: collected with it. Guards of closed objects are used again,
 * as registering and unregistering each object would cost more than all else that `close()` does.
 */
export interface FinalizerToken {
  readonly will: FinalizerInput;
}

/** The name of it in its object, which copies and JSON leave out. */
export const life = Symbol('life');

/**
 * What a resource's object has to do with its entry. It has one shape, whatever the resource is, in
 * which V8 finds a #private field at once; in an object with so many subclasses it looks for it anew
 * at each access.
 */
export class Life {
  readonly #entry: ResourceState;
  #token: FinalizerToken | undefined;

  constructor(entry: ResourceState, token: FinalizerToken | undefined) {
    this.#entry = entry;
    this.#token = token;
  }

  get entry(): ResourceState {
    return this.#entry;
  }

  /** Whether the resource was closed, or is gone with its owner. */
  get isClosed(): boolean {
    return isClosed(this.#entry);
  }

  /** Its guard, which it then has no more. */
  takeToken(): FinalizerToken | undefined {
    const token = this.#token;
    this.#token = undefined;
    return token;
  }
}

/** What is opened is closed: the one `close()`, `closed`, `using`, and finalizers. */

const tracing = process.env['CUFFI_TRACE'] === '1';
let warned = false;

const spareTokens: FinalizerToken[] = [];
const MAX_SPARE_TOKENS = 1024;

// A finalizer runs at a moment of V8's choosing: it only queues the release, which then runs
// between the turns of the main thread and pushes the context that it needs.
const finalizers = new FinalizationRegistry<FinalizerInput>(({ entry }) => {
  if (entry === undefined || isClosed(entry)) return;
  if (tracing || !warned) {
    warned = true;
    process.emitWarning(`a ${entry.kind} was garbage collected without close()`, {
      code: 'CUFFI_LEAK',
      detail: entry.openedAt ?? 'CUFFI_TRACE=1 shows where each was opened.',
    });
  }
  setImmediate(() => releaseOrWarn(() => closeIfOpen(entry, 'it was garbage collected')));
});

function takeToken(entry: ResourceState): FinalizerToken {
  const spare = spareTokens.pop();
  if (spare) {
    spare.will.entry = entry;
    return spare;
  }
  const made: FinalizerToken = { will: { entry } };
  finalizers.register(made, made.will);
  return made;
}

function recycleToken(used: FinalizerToken): void {
  used.will.entry = undefined;
  if (spareTokens.length < MAX_SPARE_TOKENS) spareTokens.push(used);
}

/**
 * Runs a release whose failure nobody is there to catch: it becomes a warning, unless it only says
 * again that a context is lost.
 *
 * @param isContextLost whether what is released is of a context that is known to be lost
 */
export function releaseOrWarn(release: () => void, isContextLost = false): void {
  beginRelease();
  try {
    release();
  } catch (error) {
    if (shouldReport(error, isContextLost))
      process.emitWarning(`a release failed: ${error}`, { code: 'CUFFI_RELEASE' });
  } finally {
    endRelease();
  }
}

/** How a {@link Resource} is opened. */
export interface ResourceInit {
  /** The owner's set: when the owner goes, this is closed. */
  readonly owner?: Scope | undefined;
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
    const entry = newResourceState(kind, owner, release, opened);
    // What owns nothing needs no list: it is gone with its object.
    if (release) owner?.add(entry);
    this[life] = new Life(entry, release && takeToken(entry));
  }

  /** Whether it was closed, by itself or through its owner. */
  get closed(): boolean {
    return this[life].isClosed;
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
   * @param onClosed called when it is closed, for one who may need nothing then
   * @throws ClosedError
   */
  addKeepalive(name = 'a handle that is open', onClosed?: () => void): () => void {
    this.assertOpen();
    const entry = this[life].entry;
    const keepalive: Keepalive = { name, onClosed };
    entry.keepalives ??= new Set();
    entry.keepalives.add(keepalive);
    return () => removeKeepalive(entry, keepalive);
  }

  /** @internal Who needs what it gives back, in words: each once. */
  get keepaliveNames(): string[] {
    const needing = [...(this[life].entry.keepalives ?? [])].filter(({ onClosed }) => !onClosed);
    return [...new Set(needing.map(({ name }) => name))];
  }

  /**
   * What another object is made of that owns what this one does from then on. This one counts as
   * closed, and gives nothing back.
   *
   * @param reason what whoever uses it afterwards is told
   * @throws CuffiError while it is retained, ClosedError
   */
  protected transferOwnership(reason: string): ResourceInit {
    this.assertOpen();
    const entry = this[life].entry;
    if (hasKeepalives(entry))
      throw new CuffiError(
        `this ${this.#kind} is held by ${this.keepaliveNames.join(', ')}: that must give it back first`,
      );
    const { owner, release } = entry;
    this.#recycleToken();
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
  invalidate(reason: string): void {
    this.#close(reason);
  }

  #close(reason?: string): void {
    const entry = this[life].entry;
    if (isClosed(entry)) return;
    this.#recycleToken();
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

  #recycleToken(): void {
    const guard = this[life].takeToken();
    if (guard) recycleToken(guard);
  }

  /** @throws ClosedError after close */
  protected assertOpen(): void {
    if (this.closed) throw this.closedError();
  }

  protected closedError(): ClosedError {
    const { owner, openedAt } = this[life].entry;
    const reason = isDiscarded(this[life].entry) ? owner?.reason : this[life].entry.reason;
    return new ClosedError(
      `this ${this.#kind} is closed${reason ? `: ${reason}` : ''}${openedAt ? `\nopened at\n${openedAt}` : ''}`,
    );
  }
}

/** What is open, in the order in which it was opened: closed with its owner, newest first. */

/** One who needs what a resource releases. */
export interface Keepalive {
  /** Who it is, in words. */
  readonly name: string;
  /**
   * Called when the resource is closed, of one who needs nothing while it is open. It may end its need
   * at once.
   */
  readonly onClosed?: (() => void) | undefined;
}

/**
 * Gives back what a resource had, and never refers to its object. Where there are many it is an object
 * that knows what it needs: a function would need a scope beside it.
 */
export type Release = (() => void) | { release(): void };

/** Runs a release. In a context that is known to be lost it fails quietly. */
function runRelease(release: Release, owner: Scope | undefined): void {
  beginRelease();
  try {
    if (typeof release === 'function') release();
    else release.release();
  } catch (error) {
    if (shouldReport(error, owner?.isOfLost ?? false)) throw error;
  } finally {
    endRelease();
  }
}

/** What outlives a resource's object: it knows how to release, and never refers to the object. */
export interface ResourceState {
  readonly kind: string;
  readonly release: Release | undefined;
  readonly owner: Scope | undefined;
  /** The owner's generation when it was opened. */
  readonly epoch: number;
  /** Where the resource was opened, with CUFFI_TRACE=1. */
  readonly openedAt: string | undefined;
  closed: boolean;
  /** Who still needs what it releases; made by the first. */
  keepalives: Set<Keepalive> | undefined;
  /** Why, where it was not its own `close()`. */
  reason: string | undefined;
  /** Its neighbours in the owner's set: the one opened before, and the one after. */
  older: ResourceState | undefined;
  newer: ResourceState | undefined;
}

/** An entry of what is being opened; it is in no set yet. */
const newResourceState = (
  kind: string,
  owner: Scope | undefined,
  release: Release | undefined,
  openedAt: string | undefined,
): ResourceState => ({
  kind,
  release,
  owner,
  epoch: owner?.epoch ?? 0,
  openedAt,
  closed: false,
  keepalives: undefined,
  reason: undefined,
  older: undefined,
  newer: undefined,
});

/** Whether it is gone with its owner: the driver has released it. */
const isDiscarded = ({ owner, epoch }: ResourceState): boolean =>
  owner !== undefined && owner.epoch !== epoch;

/** Whether it was closed, or is gone with its owner. */
const isClosed = (entry: ResourceState): boolean => entry.closed || isDiscarded(entry);

/** Closes it, unless it is closed. */
function closeIfOpen(entry: ResourceState, reason: string): void {
  if (!isClosed(entry)) closeOpen(entry, reason);
}

/**
 * How often something was closed. What calls the caller's code between its looking at objects and its
 * use of them (a getter may close one) looks at them again where this has changed.
 */
export let closeCount = 0;

/** Closes what is open; what somebody still needs is released by the last of them. */
function closeOpen(entry: ResourceState, reason?: string): void {
  closeCount += 1;
  entry.closed = true;
  entry.reason = reason;
  if (entry.release === undefined) return;
  entry.owner?.delete(entry);
  if (hasKeepalives(entry)) for (const { onClosed } of [...(entry.keepalives ?? [])]) onClosed?.();
  else runRelease(entry.release, entry.owner);
}

/** Whether somebody still needs what it releases. */
const hasKeepalives = ({ keepalives }: ResourceState): boolean =>
  keepalives !== undefined && keepalives.size > 0;

/** One less that needs what a closed resource releases. */
function removeKeepalive(entry: ResourceState, keepalive: Keepalive): void {
  if (!entry.keepalives?.delete(keepalive) || hasKeepalives(entry)) return;
  if (entry.closed && entry.release && !isDiscarded(entry)) runRelease(entry.release, entry.owner);
}

/** The open resources of one owner, in the order in which they were opened. */
export class Scope {
  readonly #parent: Scope | undefined;
  readonly #closesWithParent: boolean;
  readonly #isContextLost: () => boolean;
  /** In the owner's own set, while this one is listed there. */
  #stateInParent: ResourceState | undefined;
  #newest: ResourceState | undefined;
  #size = 0;
  #epoch = 0;
  #reason: string | undefined;

  /**
   * @param within the set that the owner itself is in: what is abandoned there is so here too
   * @param isListed whether all here is closed with what is there, as the owner itself is not
   * @param isContextLost whether the context that all here is of is known to be lost; `within` knows it else
   */
  constructor(
    within?: Scope,
    isListed = false,
    isContextLost: () => boolean = () => within?.isOfLost ?? false,
  ) {
    this.#parent = within;
    this.#closesWithParent = isListed;
    this.#isContextLost = isContextLost;
  }

  /** Whether the context that all here is of is known to be lost. */
  get isOfLost(): boolean {
    return this.#isContextLost();
  }

  /** How many are open that own something; what is only borrowed is not listed. */
  get size(): number {
    return this.#size;
  }

  /** Counts the calls of {@link discardAll}: what was opened under another count is gone. */
  get epoch(): number {
    const within = this.#parent;
    return within === undefined ? this.#epoch : this.#epoch + within.epoch;
  }

  /** Why what was opened before is gone. */
  get reason(): string | undefined {
    return this.#reason ?? this.#parent?.reason;
  }

  /** @internal */
  add(entry: ResourceState): void {
    const newest = this.#newest;
    entry.older = newest;
    if (newest) newest.newer = entry;
    this.#newest = entry;
    this.#size += 1;
    if (this.#closesWithParent && this.#size === 1) this.#addToParent();
  }

  /** @internal The entry must be in this set, and of its generation. */
  delete(entry: ResourceState): void {
    const { older, newer } = entry;
    if (older) older.newer = newer;
    if (newer) newer.older = older;
    else this.#newest = older;
    entry.older = undefined;
    entry.newer = undefined;
    this.#size -= 1;
    const standIn = this.#stateInParent;
    if (!standIn || this.#size > 0) return;
    this.#stateInParent = undefined;
    if (!isClosed(standIn)) standIn.owner?.delete(standIn);
  }

  /** Closes all, newest first; throws the first error when all were tried. */
  closeAll(reason: string): void {
    const entries: ResourceState[] = [];
    for (let entry = this.#newest; entry; entry = entry.older) entries.push(entry);
    runAll(entries.map((entry) => () => closeIfOpen(entry, reason)));
  }

  #addToParent(): void {
    const closeAll = (): void => this.closeAll(standIn.reason ?? 'its owner was closed');
    const standIn = newResourceState('ResourceSet', this.#parent, closeAll, undefined);
    this.#stateInParent = standIn;
    this.#parent?.add(standIn);
  }

  /** Makes all closed without releasing anything, as the driver has already. */
  discardAll(reason: string): void {
    closeCount += 1;
    // One that somebody keeps must not keep its neighbours.
    for (let entry = this.#newest; entry; ) {
      const { older } = entry;
      entry.older = undefined;
      entry.newer = undefined;
      entry = older;
    }
    this.#newest = undefined;
    this.#size = 0;
    this.#epoch += 1;
    this.#reason = reason;
  }
}

/** Steps that are all taken, whatever fails: giving back must not stop half-way. */

/** Takes each step in order; throws the first error when all were tried. */
export function runAll(steps: Iterable<() => void>): void {
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
