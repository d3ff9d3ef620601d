/** The staging ring: awaited copies of pageable memory pass through page-locked slots. */

import { availableParallelism } from 'node:os';
import { selectionCount } from '../../ffi/driver.ts';
import { copyHostMemory } from '../../ffi/host-copy.ts';
import { libc } from '../../ffi/linux/libc.ts';
import { addressOf } from '../../ffi/native.ts';
import type { Address } from '../../ffi/types.ts';
import type { Context } from '../context.ts';
import { throwIfOver, type Wait } from '../deadline.ts';
import { CuffiError } from '../errors.ts';
import { InternalEvent } from '../internal-event.ts';
import { releaseOrWarn } from '../lifetime.ts';
import { nextLoopIteration } from '../poller.ts';
import { chunks, roundUp } from './chunks.ts';
import { allocateHost } from './host-allocation.ts';

/** The sizes and limits of staged copies. */
export const STAGING = {
  /**
   * The longest slice. It occupies a thread for a third of a millisecond, which can delay file
   * access.
   */
  slotByteLength: 2 << 20,
  /** While threads fill or empty some slots, the others are in transfer. */
  slotCount: 8,
  /** Copying a shorter slice takes less time than waking a thread. */
  minByteLength: 512 << 10,
  /**
   * How many slices a copy has, if their size is within limits. All threads then finish together.
   */
  slices: 32,
  /** As many of libuv's four threads as leave a core to the event loop. */
  threads: Math.min(4, Math.max(2, availableParallelism() - 1)),
} as const;

/** A range of a copy. */
export type Slice = readonly [offset: number, byteLength: number];

/** A copy of pageable memory that passes through slots. */
export interface StagedCopy {
  readonly direction: 'to device' | 'to host';
  readonly context: Context;
  readonly host: Uint8Array;
  /** The offsets at which the device memory must be split. */
  readonly splitOffsets: readonly number[];
  readonly wait: Wait;
  /** Throws if the device memory was closed: it may belong to someone else by now. */
  assertOpen(): void;
  /** Copies a slice between a slot and the device. Resolves when neither is in use any longer. */
  transfer(slice: Slice, slot: StagingSlot): Promise<void>;
}

/**
 * Copies pageable host memory in slices through page-locked slots. Other threads fill and empty the
 * slots, so the event loop never waits for memory. Resolves to true when the copy is done, or to
 * false with nothing copied if no memory can be page-locked. After it settles, nothing accesses the
 * host memory.
 */
export async function copyStaged(copy: StagedCopy): Promise<boolean> {
  const { byteLength } = copy.host;
  const pool = StagingPool.of(copy.context);
  if (!pool.beginCopy()) return false;
  const slices = chunks(byteLength, copy.splitOffsets, sliceByteLength(byteLength));
  const move = copy.direction === 'to device' ? moveToDevice : moveToHost;
  const lane = async (_: unknown, index: number): Promise<void> => {
    // Creating a slot blocks, so at most one is created per event loop iteration.
    for (let count = 0; count < index && pool.needsNewSlot; count += 1) await nextLoopIteration();
    // The lanes share one generator: an error in one loop ends it for all of them.
    for (const slice of slices) {
      const slot = await pool.acquire();
      try {
        throwIfOver(copy.wait);
        await move(copy, slice, slot, byteLength);
      } finally {
        pool.release(slot);
      }
    }
  };
  const lanes = await Promise.allSettled(Array.from({ length: STAGING.slotCount }, lane));
  pool.endCopy();
  const failed = lanes.find((outcome) => outcome.status === 'rejected');
  if (failed) throw failed.reason;
  return true;
}

/**
 * Calls `use` with a slot, and returns what it returns. Undefined, with nothing called, if no memory can
 * be page-locked.
 */
export function withSlotSync<T>(context: Context, use: (slot: StagingSlot) => T): T | undefined {
  const pool = StagingPool.of(context);
  if (!pool.beginCopy()) return undefined;
  const slot = pool.takeOrMake();
  try {
    return slot && use(slot);
  } finally {
    if (slot) pool.release(slot);
    pool.endCopy();
  }
}

/** As {@link withSlotSync}, once a slot is free. */
export async function withSlot<T>(
  context: Context,
  use: (slot: StagingSlot) => Promise<T>,
): Promise<T | undefined> {
  const pool = StagingPool.of(context);
  if (!pool.beginCopy()) return undefined;
  const slot = await pool.acquire();
  try {
    return await use(slot);
  } finally {
    pool.release(slot);
    pool.endCopy();
  }
}

/** @throws TypeError if the host memory of `byteLength` bytes was detached meanwhile */
export function assertAttached(host: Uint8Array, byteLength: number): void {
  if (host.byteLength !== byteLength)
    throw new TypeError('the host memory was detached while it was copied');
}

function sliceByteLength(byteLength: number): number {
  const { slices, minByteLength, slotByteLength } = STAGING;
  const share = roundUp(byteLength / slices, libc.getpagesize());
  return Math.min(slotByteLength, Math.max(minByteLength, share));
}

async function moveToDevice(
  copy: StagedCopy,
  slice: Slice,
  slot: StagingSlot,
  byteLength: number,
): Promise<void> {
  await copyInThread(copy.host, byteLength, slice, slot, (host) => [slot.address, host]);
  await copy.transfer(slice, slot);
}

async function moveToHost(
  copy: StagedCopy,
  slice: Slice,
  slot: StagingSlot,
  byteLength: number,
): Promise<void> {
  await copy.transfer(slice, slot);
  copy.assertOpen();
  await copyInThread(copy.host, byteLength, slice, slot, (host) => [host, slot.address]);
}

/**
 * Copies between the slot and the slice in host memory, which must stay attached.
 *
 * @param byteLength the length of the whole copy
 */
async function copyInThread(
  host: Uint8Array,
  byteLength: number,
  [offset, length]: Slice,
  slot: StagingSlot,
  endpoints: (host: Address) => readonly [target: Address, source: Address],
): Promise<void> {
  const thread = await copyThreads.acquire();
  try {
    assertAttached(host, byteLength);
    const [target, source] = endpoints((addressOf(host) + offset) as Address);
    await copyHostMemory(target, source, length, host, slot);
    assertAttached(host, byteLength);
  } finally {
    copyThreads.release(thread);
  }
}

// ---- The ring of slots ----

/** A pool of items. Each has one user at a time; waiting users are served in order. */
export class AsyncPool<T> {
  readonly #free: T[];
  readonly #waiting: ((item: T) => void)[] = [];

  constructor(items: readonly T[] = []) {
    this.#free = [...items];
  }

  /** Whether the next user must wait. */
  get isEmpty(): boolean {
    return this.#free.length === 0;
  }

  /** Resolves with an item that nobody else uses until it is released. */
  acquire(): Promise<T> {
    const item = this.#free.shift();
    if (item !== undefined) return Promise.resolve(item);
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Takes an item, if one is free. */
  tryAcquire(): T | undefined {
    return this.#free.shift();
  }

  /** Returns an item, or adds a new one. The user that waited longest gets it. */
  release(item: T): void {
    const next = this.#waiting.shift();
    if (next) next(item);
    else this.#free.push(item);
  }
}

/**
 * The libuv threads that may copy at once, over all copies. File and name lookups share these
 * threads.
 */
const copyThreads = new AsyncPool(Array.from({ length: STAGING.threads }, (_, thread) => thread));

/** Page-locked memory that stages one slice of a copy at a time. */
export interface StagingSlot {
  readonly address: Address;
  /** Recorded after the transfer that uses the slot. */
  readonly event: InternalEvent;
  readonly release: () => void;
}

const stagingPools = new WeakMap<Context, StagingPool>();

/** Page-locking costs more than a copy, so the slots stay for a while after the last copy. */
const IDLE_MS = 1000;

/**
 * The page-locked slots of a context for awaited copies of pageable memory. They are created on
 * demand, and freed after one second without a copy or by `context.flush()`. Concurrent copies
 * share them.
 */
class StagingPool {
  readonly #context: Context;
  readonly #epoch: number;
  readonly #selection = selectionCount();
  #free = new AsyncPool<StagingSlot>();
  #slots: StagingSlot[] = [];
  #maxSlots: number = STAGING.slotCount;
  #activeCopies = 0;
  #idleTimer: NodeJS.Timeout | undefined;

  private constructor(context: Context) {
    this.#context = context;
    this.#epoch = context.epoch;
  }

  /** The staging pool of a context; a new one after a reset. */
  static of(context: Context): StagingPool {
    const existing = stagingPools.get(context);
    if (existing && !existing.#isStale) return existing;
    const pool = new StagingPool(context);
    stagingPools.set(context, pool);
    return pool;
  }

  /**
   * Starts a copy, which ends with {@link endCopy}. Returns false and starts nothing if no memory
   * can be page-locked.
   */
  beginCopy(): boolean {
    clearTimeout(this.#idleTimer);
    if (this.#slots.length === 0) {
      this.#maxSlots = STAGING.slotCount;
      this.#grow();
      if (this.#slots.length === 0) return false;
      this.#context.cacheTrimmers.add(this.#releaseUnused);
    }
    this.#activeCopies += 1;
    return true;
  }

  endCopy(): void {
    this.#activeCopies -= 1;
    if (this.#activeCopies > 0) return;
    if (this.#isStale) this.#releaseUnused();
    else this.#idleTimer = setTimeout(this.#releaseUnused, IDLE_MS).unref();
  }

  /** Whether the next slot must be created, which blocks. */
  get needsNewSlot(): boolean {
    return this.#free.isEmpty && !this.#isStale && this.#slots.length < this.#maxSlots;
  }

  /**
   * Resolves with a slot that no transfer uses. After a reset, no slots are created for the copies
   * that are still ending.
   */
  acquire(): Promise<StagingSlot> {
    if (this.needsNewSlot) this.#grow();
    return this.#free.acquire();
  }

  /** Returns a slot that no transfer uses: a new one, even beyond the limit, if all are in use. */
  takeOrMake(): StagingSlot | undefined {
    return this.#free.tryAcquire() ?? this.#make();
  }

  release(slot: StagingSlot): void {
    this.#free.release(slot);
  }

  get #isStale(): boolean {
    return this.#context.epoch !== this.#epoch || selectionCount() !== this.#selection;
  }

  #grow(): void {
    const slot = this.#make();
    if (slot) this.#free.release(slot);
    // Copies use fewer slots, or none.
    else this.#maxSlots = this.#slots.length;
  }

  #make(): StagingSlot | undefined {
    try {
      const slot = makeSlot(this.#context);
      this.#slots.push(slot);
      return slot;
    } catch (error) {
      if (!(error instanceof CuffiError || error instanceof RangeError)) throw error;
      return undefined;
    }
  }

  readonly #releaseUnused = (): void => {
    if (this.#activeCopies > 0) return;
    clearTimeout(this.#idleTimer);
    this.#context.cacheTrimmers.delete(this.#releaseUnused);
    const slots = this.#slots;
    this.#slots = [];
    this.#free = new AsyncPool();
    // A reset unlocked them: they are unmapped when their memory is collected.
    if (this.#isStale) return;
    for (const slot of slots) releaseOrWarn(slot.release);
  };
}

function makeSlot(context: Context): StagingSlot {
  const event = new InternalEvent(context);
  try {
    const kind = { portable: false, mapped: false, writeCombined: false };
    const memory = allocateHost(context, STAGING.slotByteLength, kind);
    const release = (): void => {
      event[Symbol.dispose]();
      memory.release();
    };
    return { address: memory.address, event, release };
  } catch (error) {
    event[Symbol.dispose]();
    throw error;
  }
}
