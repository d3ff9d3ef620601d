import { availableParallelism } from 'node:os';
import { selectionCount } from '../../ffi/driver.ts';
import { copyHostMemory } from '../../ffi/host-copy.ts';
import { libc } from '../../ffi/linux/libc.ts';
import { addressOf } from '../../ffi/native.ts';
import type { Address, CUstream } from '../../ffi/types.ts';
import type { Context } from '../context.ts';
import { CuffiError } from '../errors.ts';
import { releaseOrWarn } from '../lifetime.ts';
import { nextLoopIteration } from '../poller.ts';
import { chunks, roundUp } from './chunks.ts';
import { allocateHost } from './host-allocation.ts';
import {
  assertAttached,
  type HostCopy,
  queueSlice,
  type StartedCopy,
  transferAndWait,
} from './host-copy.ts';
import { InternalEvent } from './internal-event.ts';

/** Things that are lent to one asker at a time, in the order of asking. */
export class AsyncPool<T> {
  readonly #free: T[];
  readonly #waiting: ((item: T) => void)[] = [];

  constructor(items: readonly T[] = []) {
    this.#free = [...items];
  }

  /** Whether the next asker must wait. */
  get isEmpty(): boolean {
    return this.#free.length === 0;
  }

  /** Resolves with a thing that nobody else has, until it is given back. */
  acquire(): Promise<T> {
    const item = this.#free.shift();
    if (item !== undefined) return Promise.resolve(item);
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Gives a thing back, or a new one in; whoever has waited longest gets it. */
  release(item: T): void {
    const next = this.#waiting.shift();
    if (next) next(item);
    else this.#free.push(item);
  }
}

/** Page-locked memory that one slice of a copy at a time passes through. */
export interface StagingSlot {
  readonly address: Address;
  /** Recorded behind the transfer that uses the slot. */
  readonly event: InternalEvent;
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

const stagingPools = new WeakMap<Context, StagingPool>();

/**
 * The page-locked slots of a context that awaited copies of ordinary memory pass through, made
 * when they are needed and given back when none was for a second, or in `context.flush()`. All
 * copies under way share them in turn.
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

  /** The ring of a context; another one after a reset. */
  static of(context: Context): StagingPool {
    const existing = stagingPools.get(context);
    if (existing && !existing.#isStale) return existing;
    const ring = new StagingPool(context);
    stagingPools.set(context, ring);
    return ring;
  }

  /**
   * Begins a copy, which ends with {@link endCopy}. False, and nothing begun, where no memory can be
   * page-locked.
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

  /** Whether the next slot must be made, which blocks. */
  get needsNewSlot(): boolean {
    return this.#free.isEmpty && !this.#isStale && this.#slots.length < this.#maxSlots;
  }

  /** A slot that no transfer uses; after a reset none is made for the copies that still end. */
  acquire(): Promise<StagingSlot> {
    if (this.needsNewSlot) this.#grow();
    return this.#free.acquire();
  }

  release(slot: StagingSlot): void {
    this.#free.release(slot);
  }

  get #isStale(): boolean {
    return this.#context.epoch !== this.#epoch || selectionCount() !== this.#selection;
  }

  #grow(): void {
    try {
      const slot = makeSlot(this.#context);
      this.#slots.push(slot);
      this.#free.release(slot);
    } catch (error) {
      if (!(error instanceof CuffiError || error instanceof RangeError)) throw error;
      // Copies go through fewer slots, or without.
      this.#maxSlots = this.#slots.length;
    }
  }

  readonly #releaseUnused = (): void => {
    if (this.#activeCopies > 0) return;
    clearTimeout(this.#idleTimer);
    this.#context.cacheTrimmers.delete(this.#releaseUnused);
    const slots = this.#slots;
    this.#slots = [];
    this.#free = new AsyncPool();
    // After a reset the driver has forgotten them: they go when their memory is collected.
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

/**
 * Awaited copies of ordinary host memory: in slices through page-locked slots, which other threads
 * fill and empty, so that the event loop never waits for memory.
 */

/** How many of libuv's threads copy at once, whatever is copied: files and names take their turns. */
const copyThreads = new AsyncPool(Array.from({ length: STAGING.threads }, (_, thread) => thread));

/** A slice on its way through a slot. */
interface Slice {
  readonly copy: HostCopy;
  /** Of the whole copy. */
  readonly byteLength: number;
  readonly offset: number;
  readonly length: number;
  readonly slot: StagingSlot;
  readonly transferStream: CUstream;
}

/**
 * Resolves when the copy is done; to false, with nothing copied, where no memory can be
 * page-locked. Once it has settled nothing touches the host memory, whatever happened.
 */
export async function copyStaged({ copy, transferStream, signal }: StartedCopy): Promise<boolean> {
  const { byteLength } = copy.host;
  const pool = StagingPool.of(copy.context);
  if (!pool.beginCopy()) return false;
  const slices = chunks(byteLength, copy.splitOffsets, sliceByteLength(byteLength));
  const move = copy.direction === 'to device' ? moveToDevice : moveToHost;
  const lane = async (_: unknown, turns: number): Promise<void> => {
    // Each may have to make a slot, which blocks: one in a turn.
    for (let turn = 0; turn < turns && pool.needsNewSlot; turn += 1) await nextLoopIteration();
    // The lanes share one generator: a loop that an error leaves ends it for all of them.
    for (const [offset, length] of slices) {
      const slot = await pool.acquire();
      try {
        signal?.throwIfAborted();
        await move({ copy, byteLength, offset, length, slot, transferStream });
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

function sliceByteLength(byteLength: number): number {
  const { slices, leastByteLength, slotByteLength } = STAGING;
  const share = roundUp(byteLength / slices, libc.getpagesize());
  return Math.min(slotByteLength, Math.max(leastByteLength, share));
}

async function moveToDevice(slice: Slice): Promise<void> {
  await copyInThread(slice, (host) => [slice.slot.address, host]);
  await transferSlice(slice);
}

async function moveToHost(slice: Slice): Promise<void> {
  await transferSlice(slice);
  // What a closed buffer held is not handed out, as it may be another's by now.
  slice.copy.device();
  await copyInThread(slice, (host) => [host, slice.slot.address]);
}

/** Copies between the slot and the slice's place in host memory, which must be there throughout. */
async function copyInThread(
  { copy: { host }, byteLength, offset, length, slot }: Slice,
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

const transferSlice = ({ copy, offset, length, slot, transferStream }: Slice): Promise<void> =>
  transferAndWait(copy.context, transferStream, slot.event, () =>
    queueSlice(copy, offset, slot.address, length, transferStream),
  );
