/** A pool: one memfd, of which parts are reserved, and of those parts given out. */
import { closeFd, libc, SystemError } from '../linux/libc.ts';
import { createSealedMemfd } from './block.ts';
import type { Memory } from './memory.ts';
import { POOL_PAGE_BYTE_LENGTH, PoolPage, type SharedAllocation } from './pool-page.ts';
import { PoolExtents } from './pool-space.ts';
import type { Stream } from './queues.ts';
import type { Range } from './ranges.ts';
import type { Region } from './region.ts';
import { fillUninitialized, roundUp } from './space.ts';

/** The name of a pool's memfd. */
export const POOL_NAME = 'cuffi.pool';

/** What allocations are measured in. */
const ALLOCATION_UNIT = 512;
const F_DUPFD = 0;

/** Memory of a pool that this process made, or of one that it imported. */
export interface PoolRegion extends Region {
  readonly kind: 'pool';
  readonly pool: Pool | undefined;
  /** cuMemFreeAsync was called, and its stream has not come there yet. */
  isFreed: boolean;
  shared: SharedAllocation | undefined;
}

/** Freed in a stream's order: that stream may use it again at once, others when it is reached. */
interface PendingFree {
  readonly region: PoolRegion;
  readonly stream: Stream;
}

/** What a pool is asked to be. */
export interface PoolOptions {
  readonly handle: number;
  readonly device: number;
  readonly handleTypes: number;
  /** As many bytes as it may reserve. */
  readonly capacity: number;
  readonly isDefault: boolean;
}

export class Pool {
  readonly handle: number;
  readonly device: number;
  readonly handleTypes: number;
  readonly isDefault: boolean;
  /** What each device but the owner may do. */
  readonly accessFlags = new Map<number, number>();
  readonly page: PoolPage;
  releaseThreshold = 0n;
  /** Whether memory may be used again early: by events' order, by luck, by new dependencies. */
  readonly reuse: number[] = [1, 1, 1];
  readonly extents: PoolExtents;
  usedBytes = 0;
  usedHighWater = 0;
  /** Freed by cuMemFree, and counted as used until a context was waited for. */
  #delayedFreeBytes = 0;
  isDestroyed = false;
  readonly #memory: Memory;
  readonly #fd: number;
  readonly #address: number;
  readonly #capacity: number;
  readonly #mapped: Range;
  readonly #live = new Set<PoolRegion>();
  readonly #pending = new Set<PendingFree>();
  /** Freed here, and still mapped by other processes. */
  readonly #freedButMapped = new Set<PoolRegion>();

  private constructor(memory: Memory, options: PoolOptions, fd: number, address: number) {
    this.#memory = memory;
    this.handle = options.handle;
    this.device = options.device;
    this.handleTypes = options.handleTypes;
    this.isDefault = options.isDefault;
    this.#capacity = options.capacity;
    this.#fd = fd;
    this.#address = address;
    this.#mapped = { address, byteLength: options.capacity };
    memory.pools.add(this.#mapped);
    this.page = new PoolPage(address + options.capacity);
    this.page.initialise(options.device);
    this.extents = new PoolExtents(fd, options.capacity, (byteLength) =>
      memory.hasFree(options.device, byteLength),
    );
  }

  /** Undefined where the system refuses. */
  static create(memory: Memory, options: PoolOptions): Pool | undefined {
    const byteLength = options.capacity + POOL_PAGE_BYTE_LENGTH;
    try {
      const fd = createSealedMemfd(POOL_NAME, byteLength);
      const address = memory.space.map(fd, byteLength);
      if (address !== undefined) return new Pool(memory, options, fd, address);
      closeFd(fd);
    } catch (error) {
      if (!(error instanceof SystemError)) throw error;
    }
    return undefined;
  }

  access(device: number): number {
    return device === this.device ? 3 : (this.accessFlags.get(device) ?? 0);
  }

  /** Undefined where there is not enough memory. */
  allocate(
    asked: number,
    stream: Stream,
    access = (device: number): number => this.access(device),
  ): PoolRegion | undefined {
    const byteLength = roundUp(asked, ALLOCATION_UNIT);
    const address = this.#reuse(byteLength, stream) ?? this.#take(byteLength);
    if (address === undefined) return undefined;
    const region: PoolRegion = {
      kind: 'pool',
      address,
      byteLength,
      requestedByteLength: asked,
      device: this.device,
      context: undefined,
      bufferId: this.#memory.nextBufferId(),
      handleTypes: this.handleTypes,
      poolHandle: this.handle,
      access,
      pool: this,
      isFreed: false,
      shared: undefined,
    };
    this.#memory.regions.add(region);
    this.#live.add(region);
    this.usedBytes += asked;
    this.usedHighWater = Math.max(this.usedHighWater, this.usedBytes);
    return region;
  }

  /**
   * Frees in a stream's order: call what it answers with when the stream gets there. What is used
   * falls at once where that is asked for, and otherwise when a context was waited for.
   */
  freeLater(region: PoolRegion, stream: Stream, isCounted: boolean): () => void {
    const pending = { region, stream };
    region.isFreed = true;
    if (isCounted) this.usedBytes -= region.requestedByteLength;
    else this.#delayedFreeBytes += region.requestedByteLength;
    this.#pending.add(pending);
    return () => {
      if (this.#pending.delete(pending)) this.#end(region);
    };
  }

  countDelayedFrees(): void {
    this.usedBytes -= this.#delayedFreeBytes;
    this.#delayedFreeBytes = 0;
  }

  #end(region: PoolRegion): void {
    this.#forget(region);
    const { shared } = region;
    if (shared) this.page.unshare(shared.slot);
    if (shared && this.page.hasImporters(shared.slot)) this.#freedButMapped.add(region);
    else this.extents.free(region.address - this.#address, region.byteLength);
    this.#endIfEmpty();
  }

  /** Frees what was to be freed in the order of streams that are no more. */
  freePendingOf(isGone: (stream: Stream) => boolean): void {
    for (const pending of [...this.#pending]) {
      if (!isGone(pending.stream)) continue;
      this.#pending.delete(pending);
      this.#end(pending.region);
    }
  }

  share(region: PoolRegion): SharedAllocation | undefined {
    const offset = region.address - this.#address;
    region.shared ??= this.page.share(region.bufferId, offset, region.requestedByteLength);
    return region.shared;
  }

  /** A descriptor that others import; programs that this process starts inherit it. */
  export(): number | undefined {
    const fd = libc.fcntl(this.#fd, F_DUPFD, 0);
    return fd < 0 ? undefined : fd;
  }

  /** Gives reserved memory back that is not in use, until only `keep` bytes are reserved. */
  trim(keep: number): void {
    this.#reclaim();
    this.extents.trim(keep);
  }

  /** What is in use stays; the pool goes when it is freed. */
  destroy(): void {
    this.isDestroyed = true;
    this.#endIfEmpty();
  }

  /** Memory freed in the same stream just before, if it has the very size. */
  #reuse(byteLength: number, stream: Stream): number | undefined {
    for (const pending of this.#pending) {
      const { region } = pending;
      if (pending.stream !== stream || region.byteLength !== byteLength || region.shared) continue;
      this.#pending.delete(pending);
      this.#forget(region);
      return region.address;
    }
    return undefined;
  }

  #take(byteLength: number): number | undefined {
    const offset = this.extents.take(byteLength, () => this.#reclaim());
    if (offset === undefined) return undefined;
    fillUninitialized(this.#address + offset, byteLength);
    return this.#address + offset;
  }

  /** Takes back what importers have let go of. */
  #reclaim(): void {
    for (const region of this.#freedButMapped) {
      if (region.shared && this.page.hasImporters(region.shared.slot)) continue;
      this.#freedButMapped.delete(region);
      this.extents.free(region.address - this.#address, region.byteLength);
    }
  }

  #forget(region: PoolRegion): void {
    this.#memory.regions.remove(region);
    this.#live.delete(region);
  }

  #endIfEmpty(): void {
    if (!this.isDestroyed || this.#live.size > 0) return;
    // Importers have mappings of their own.
    this.#freedButMapped.clear();
    this.extents.clear();
    this.#memory.pools.remove(this.#mapped);
    this.#memory.space.unmap(this.#address, this.#capacity + POOL_PAGE_BYTE_LENGTH);
    closeFd(this.#fd);
  }
}
