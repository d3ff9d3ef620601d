import { availableParallelism } from 'node:os';
import { selectionCount } from '../../ffi/driver.ts';
import { copyHostMemory } from '../../ffi/host-copy.ts';
import { libc } from '../../ffi/linux/libc.ts';
import { addressOf } from '../../ffi/native.ts';
import type { Address, CUstream } from '../../ffi/types.ts';
import type { Context } from '../context.ts';
import { CuffiError } from '../errors.ts';
import { releaseQuietly } from '../lifetime.ts';
import { nextTurn } from '../poller.ts';
import { pieces, roundUp } from './chunks.ts';
import { allocateHost } from './host-allocation.ts';
import {
  type BegunCopy,
  type HostCopy,
  moveInStream,
  queueSlice,
  requireAttached,
} from './host-copy.ts';
import { Mark } from './internal-event.ts';

/** Things that are lent to one asker at a time, in the order of asking. */
export class Lender<T> {
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
  take(): Promise<T> {
    const item = this.#free.shift();
    if (item !== undefined) return Promise.resolve(item);
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Gives a thing back, or a new one in; whoever has waited longest gets it. */
  give(item: T): void {
    const next = this.#waiting.shift();
    if (next) next(item);
    else this.#free.push(item);
  }
}

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
class StagingRing {
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

/**
 * Awaited copies of ordinary host memory: in slices through page-locked slots, which other threads
 * fill and empty, so that the event loop never waits for memory.
 */

/** How many of libuv's threads copy at once, whatever is copied: files and names take their turns. */
const threads = new Lender(Array.from({ length: STAGING.threads }, (_, thread) => thread));

/** A slice on its way through a slot. */
interface Slice {
  readonly copy: HostCopy;
  /** Of the whole copy. */
  readonly byteLength: number;
  readonly offset: number;
  readonly length: number;
  readonly slot: Slot;
  readonly transfers: CUstream;
}

/**
 * Resolves when the copy is done; to false, with nothing copied, where no memory can be
 * page-locked. Once it has settled nothing touches the host memory, whatever happened.
 */
export async function copyStaged({ copy, transfers, signal }: BegunCopy): Promise<boolean> {
  const { byteLength } = copy.host;
  const ring = StagingRing.of(copy.context);
  if (!ring.enter()) return false;
  const slices = pieces(byteLength, copy.cuts, sliceByteLength(byteLength));
  const move = copy.direction === 'to device' ? moveToDevice : moveToHost;
  const lane = async (_: unknown, turns: number): Promise<void> => {
    // Each may have to make a slot, which blocks: one in a turn.
    for (let turn = 0; turn < turns && ring.mustGrow; turn += 1) await nextTurn();
    // The lanes share one generator: a loop that an error leaves ends it for all of them.
    for (const [offset, length] of slices) {
      const slot = await ring.take();
      try {
        signal?.throwIfAborted();
        await move({ copy, byteLength, offset, length, slot, transfers });
      } finally {
        ring.give(slot);
      }
    }
  };
  const lanes = await Promise.allSettled(Array.from({ length: STAGING.slotCount }, lane));
  ring.leave();
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
  await copyOffThread(slice, (host) => [slice.slot.address, host]);
  await transfer(slice);
}

async function moveToHost(slice: Slice): Promise<void> {
  await transfer(slice);
  // What a closed buffer held is not handed out, as it may be another's by now.
  slice.copy.device();
  await copyOffThread(slice, (host) => [host, slice.slot.address]);
}

/** Copies between the slot and the slice's place in host memory, which must be there throughout. */
async function copyOffThread(
  { copy: { host }, byteLength, offset, length, slot }: Slice,
  ends: (host: Address) => readonly [target: Address, source: Address],
): Promise<void> {
  const thread = await threads.take();
  try {
    requireAttached(host, byteLength);
    const [target, source] = ends((addressOf(host) + offset) as Address);
    await copyHostMemory(target, source, length, host, slot);
    requireAttached(host, byteLength);
  } finally {
    threads.give(thread);
  }
}

const transfer = ({ copy, offset, length, slot, transfers }: Slice): Promise<void> =>
  moveInStream(copy.context, transfers, slot.mark, () =>
    queueSlice(copy, offset, slot.address, length, transfers),
  );
