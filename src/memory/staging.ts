import { availableParallelism } from 'node:os';
import { selectionCount } from '../../ffi/driver.ts';
import type { Address } from '../../ffi/types.ts';
import type { Context } from '../context.ts';
import { CuffiError } from '../errors.ts';
import { releaseQuietly } from '../resource.ts';
import { allocateHost } from './host-allocation.ts';
import { Lender } from './lender.ts';
import { Mark } from './mark.ts';

/** Page-locked memory that one slice of a copy at a time passes through. */
export interface Slot {
  readonly address: Address;
  /** Recorded behind the transfer that uses the slot. */
  readonly mark: Mark;
  readonly release: () => void;
}

/** How a copy is cut, and how much of it goes on at once. */
export const STAGING = {
  /** The longest slice: a third of a millisecond of a thread, for which a file may have to wait. */
  slotByteLength: 2 << 20,
  /** Beside those that threads fill or empty, as many are on their way. */
  slotCount: 8,
  /** A shorter slice is copied in less time than it takes to wake a thread. */
  leastByteLength: 512 << 10,
  /** Into how many a copy is cut, if they are not too long or too short: all threads end together. */
  slices: 32,
  /** As many of libuv's four as leave the event loop a core. */
  threads: Math.min(4, Math.max(2, availableParallelism() - 1)),
} as const;

/** Page-locking costs more than a copy: between two of them the slots stay for a while. */
const IDLE_MS = 1000;

const rings = new WeakMap<Context, StagingRing>();

/**
 * The page-locked slots of a context that awaited copies of ordinary memory pass through, made
 * when they are needed and given back when none was for a second, or in `context.flush()`. All
 * copies under way share them in turn.
 */
export class StagingRing {
  readonly #context: Context;
  readonly #resets: number;
  readonly #selection = selectionCount();
  #free = new Lender<Slot>();
  #slots: Slot[] = [];
  #most: number = STAGING.slotCount;
  #copies = 0;
  #idle: NodeJS.Timeout | undefined;

  private constructor(context: Context) {
    this.#context = context;
    this.#resets = context.resets;
  }

  /** The ring of a context; another one after a reset. */
  static of(context: Context): StagingRing {
    const existing = rings.get(context);
    if (existing && !existing.#isStale) return existing;
    const ring = new StagingRing(context);
    rings.set(context, ring);
    return ring;
  }

  /**
   * Begins a copy, which ends with {@link leave}. False, and nothing begun, where no memory can be
   * page-locked.
   */
  enter(): boolean {
    clearTimeout(this.#idle);
    if (this.#slots.length === 0) {
      this.#most = STAGING.slotCount;
      this.#grow();
      if (this.#slots.length === 0) return false;
      this.#context.spares.add(this.#giveBackUnused);
    }
    this.#copies += 1;
    return true;
  }

  leave(): void {
    this.#copies -= 1;
    if (this.#copies > 0) return;
    if (this.#isStale) this.#giveBackUnused();
    else this.#idle = setTimeout(this.#giveBackUnused, IDLE_MS).unref();
  }

  /** Whether the next slot must be made, which blocks. */
  get mustGrow(): boolean {
    return this.#free.isEmpty && !this.#isStale && this.#slots.length < this.#most;
  }

  /** A slot that no transfer uses; after a reset none is made for the copies that still end. */
  take(): Promise<Slot> {
    if (this.mustGrow) this.#grow();
    return this.#free.take();
  }

  give(slot: Slot): void {
    this.#free.give(slot);
  }

  get #isStale(): boolean {
    return this.#context.resets !== this.#resets || selectionCount() !== this.#selection;
  }

  #grow(): void {
    try {
      const slot = makeSlot(this.#context);
      this.#slots.push(slot);
      this.#free.give(slot);
    } catch (error) {
      if (!(error instanceof CuffiError || error instanceof RangeError)) throw error;
      // Copies go through fewer slots, or without.
      this.#most = this.#slots.length;
    }
  }

  readonly #giveBackUnused = (): void => {
    if (this.#copies > 0) return;
    clearTimeout(this.#idle);
    this.#context.spares.delete(this.#giveBackUnused);
    const slots = this.#slots;
    this.#slots = [];
    this.#free = new Lender();
    // After a reset the driver has forgotten them: they go when their memory is collected.
    if (this.#isStale) return;
    for (const slot of slots) releaseQuietly(slot.release);
  };
}

function makeSlot(context: Context): Slot {
  const mark = new Mark(context);
  try {
    const kind = { portable: false, mapped: false, writeCombined: false };
    const memory = allocateHost(context, STAGING.slotByteLength, kind);
    const release = (): void => {
      mark[Symbol.dispose]();
      memory.release();
    };
    return { address: memory.address, mark, release };
  } catch (error) {
    mark[Symbol.dispose]();
    throw error;
  }
}
