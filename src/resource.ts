/** What is opened is closed: the one `close()`, `closed`, `using`, owners and finalizers. */
import { inspect } from 'node:util';
import { tryAll } from './attempt.ts';
import { ClosedError } from './errors.ts';

/** What outlives a resource's object: it knows how to release, and never refers to the object. */
interface Entry {
  readonly kind: string;
  readonly release: (() => void) | undefined;
  readonly owner: ResourceSet | undefined;
  /** The owner's generation when it was opened. */
  readonly generation: number;
  /** Where the resource was opened, with CUFFI_TRACE=1. */
  readonly opened: string | undefined;
  closed: boolean;
  /** How many still need what it releases. */
  holders: number;
  /** Why, where it was not its own `close()`. */
  reason: string | undefined;
  /** Its neighbours in the owner's set: the one opened before, and the one after. */
  older: Entry | undefined;
  newer: Entry | undefined;
}

/** What a finalizer is told: the entry of the object that was collected, unless it was closed. */
interface Will {
  entry: Entry | undefined;
}

/**
 * What an open object alone refers to: collected with it. Guards of closed objects are used again,
 * as registering and unregistering each object would cost more than all else that `close()` does.
 */
interface Guard {
  readonly will: Will;
}

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

/** Runs a release whose failure nobody is there to catch: it becomes a warning. */
export function releaseQuietly(release: () => void): void {
  try {
    release();
  } catch (error) {
    process.emitWarning(`a release failed: ${error}`, { code: 'CUFFI_RELEASE' });
  }
}

const isClosed = (entry: Entry): boolean =>
  entry.closed || (entry.owner !== undefined && entry.owner.generation !== entry.generation);

function closeEntry(entry: Entry, reason: string): void {
  if (!isClosed(entry)) closeOpen(entry, reason);
}

function closeOpen(entry: Entry, reason?: string): void {
  entry.closed = true;
  entry.reason = reason;
  if (entry.release === undefined) return;
  entry.owner?.delete(entry);
  if (entry.holders === 0) entry.release();
}

function letGo(entry: Entry): void {
  entry.holders -= 1;
  const isGone = entry.owner !== undefined && entry.owner.generation !== entry.generation;
  if (entry.holders === 0 && entry.closed && !isGone) entry.release?.();
}

/** The open resources of one owner, in the order in which they were opened. */
export class ResourceSet {
  readonly #within: ResourceSet | undefined;
  readonly #isListed: boolean;
  /** In the owner's own set, while this one is listed there. */
  #standIn: Entry | undefined;
  #newest: Entry | undefined;
  #size = 0;
  #generation = 0;
  #reason: string | undefined;

  /**
   * @param within the set that the owner itself is in: what is abandoned there is so here too
   * @param isListed whether all here is closed with what is there, as the owner itself is not
   */
  constructor(within?: ResourceSet, isListed = false) {
    this.#within = within;
    this.#isListed = isListed;
  }

  /** How many are open that own something; what is only borrowed is not listed. */
  get size(): number {
    return this.#size;
  }

  /** Counts the calls of {@link abandonAll}: what was opened under another count is gone. */
  get generation(): number {
    return this.#generation + (this.#within?.generation ?? 0);
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
    const standIn: Entry = {
      kind: 'ResourceSet',
      release: () => this.closeAll(standIn.reason ?? 'its owner was closed'),
      owner: this.#within,
      generation: this.generation,
      opened: undefined,
      closed: false,
      reason: undefined,
      older: undefined,
      newer: undefined,
    };
    this.#standIn = standIn;
    this.#within?.add(standIn);
  }

  /** Makes all closed without releasing anything, as the driver has already. */
  abandonAll(reason: string): void {
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

/** How a {@link Resource} is opened. */
export interface ResourceInit {
  /** The owner's set: when the owner goes, this is closed. */
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
  #guard: Guard | undefined;

  protected constructor(kind: string, { owner, release }: ResourceInit) {
    this.#kind = kind;
    this.#entry = {
      kind,
      release,
      owner,
      generation: owner?.generation ?? 0,
      opened: tracing ? new Error('opened').stack?.split('\n').slice(3).join('\n') : undefined,
      closed: false,
      holders: 0,
      reason: undefined,
      older: undefined,
      newer: undefined,
    };
    // What owns nothing needs no list: it is gone with its object.
    if (!release) return;
    owner?.add(this.#entry);
    this.#guard = guard(this.#entry);
  }

  /** Whether it was closed, by itself or through its owner. */
  get closed(): boolean {
    return isClosed(this.#entry);
  }

  /** Whether `value` is a resource of that kind: cheaper than instanceof, and needs no import. */
  static is(value: unknown, kind: string): boolean {
    return typeof value === 'object' && value !== null && #kind in value && value.#kind === kind;
  }

  /**
   * @internal Puts off what `close()` gives back until the function that this answers is called,
   * once. A closed one counts as closed all the same.
   */
  retain(): () => void {
    this.requireOpen();
    const entry = this.#entry;
    entry.holders += 1;
    return () => letGo(entry);
  }

  /** Gives it back; the second time does nothing. */
  close(): void {
    const entry = this.#entry;
    if (isClosed(entry)) return;
    const guard = this.#guard;
    this.#guard = undefined;
    if (guard) giveBack(guard);
    closeOpen(entry);
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

  protected closedError(): ClosedError {
    const { owner, generation, opened } = this.#entry;
    const isAbandoned = owner !== undefined && owner.generation !== generation;
    const reason = isAbandoned ? owner.reason : this.#entry.reason;
    return new ClosedError(
      `this ${this.#kind} is closed${reason ? `: ${reason}` : ''}${opened ? `\nopened at\n${opened}` : ''}`,
    );
  }
}
