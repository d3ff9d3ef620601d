/** What is open, in the order in which it was opened: closed with its owner, newest first. */
import { tryAll } from './attempt.ts';
import { beginRelease, endRelease, isNews } from './lost.ts';

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
export const newEntry = (
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
export const isAbandoned = ({ owner, generation }: Entry): boolean =>
  owner !== undefined && owner.generation !== generation;

/** Whether it was closed, or is gone with its owner. */
export const isClosed = (entry: Entry): boolean => entry.closed || isAbandoned(entry);

/** Closes it, unless it is closed. */
export function closeEntry(entry: Entry, reason: string): void {
  if (!isClosed(entry)) closeOpen(entry, reason);
}

/**
 * How often something was closed. What calls the caller's code between its looking at objects and its
 * use of them (a getter may close one) looks at them again where this has changed.
 */
export let closings = 0;

/** Closes what is open; what somebody still needs is released by the last of them. */
export function closeOpen(entry: Entry, reason?: string): void {
  closings += 1;
  entry.closed = true;
  entry.reason = reason;
  if (entry.release === undefined) return;
  entry.owner?.delete(entry);
  if (isHeld(entry)) for (const { closed } of [...(entry.holders ?? [])]) closed?.();
  else run(entry.release, entry.owner);
}

/** Whether somebody still needs what it releases. */
export const isHeld = ({ holders }: Entry): boolean => holders !== undefined && holders.size > 0;

/** One less that needs what a closed resource releases. */
export function letGo(entry: Entry, holder: Holder): void {
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
