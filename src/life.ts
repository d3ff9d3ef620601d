import { type Entry, isClosed } from './resource-set.ts';

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
