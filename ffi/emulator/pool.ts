/** A pool: one memfd, parts of which are reserved, and parts of those allocated. */
import { closeFd, libc, SystemError } from '../linux/libc.ts';
import { fillUninitialized, GRANULARITY, roundUp } from './address-space.ts';
import type { Memory, Region } from './memory.ts';
import { POOL_PAGE_BYTE_LENGTH, PoolPage, type SharedAllocation } from './pool-page.ts';
import { createFixedMemfd } from './processes.ts';
import { FirstFitAllocator, type Range } from './ranges.ts';
import type { Stream } from './stream-queues.ts';

/** The name of a pool's memfd. */
export const POOL_NAME = 'cuffi.pool';

/** The granularity of allocations. */
const ALLOCATION_UNIT = 512;
const F_DUPFD = 0;

/** An allocation of a pool of this process, or of an imported pool. */
export interface PoolRegion extends Region {
  readonly kind: 'pool';
  readonly pool: Pool | undefined;
  /** cuMemFreeAsync was called, but its stream has not reached the free. */
  isFreed: boolean;
  shared: SharedAllocation | undefined;
}

/** A stream-ordered free. The stream itself may reuse the memory at once, others after the free. */
interface PendingFree {
  readonly region: PoolRegion;
  readonly stream: Stream;
}

/** Properties of a pool. */
export interface PoolOptions {
  readonly handle: number;
  readonly device: number;
  /** The number of the device in the machine: importers may see others. */
  readonly physicalDevice: number;
  readonly handleTypes: number;
  /** The most bytes that it may reserve. */
  readonly capacity: number;
  readonly isDefault: boolean;
}

export class Pool {
  readonly handle: number;
  readonly device: number;
  readonly handleTypes: number;
  readonly isDefault: boolean;
  /** The access of other devices. */
  readonly accessFlags = new Map<number, number>();
  readonly page: PoolPage;
  releaseThreshold = 0n;
  /** The three reuse attributes: follow events, opportunistic, internal dependencies. */
  readonly reuse: number[] = [1, 1, 1];
  readonly extents: PoolExtents;
  usedBytes = 0;
  usedHighWater = 0;
  /** Bytes freed by cuMemFree, which count as used until the next context synchronization. */
  #delayedFreeBytes = 0;
  isDestroyed = false;
  /** Whether it has a descriptor for others: only then may they get its allocations. */
  isExported = false;
  readonly #memory: Memory;
  readonly #fd: number;
  readonly #address: number;
  readonly #capacity: number;
  readonly #mapped: Range;
  readonly #live = new Set<PoolRegion>();
  readonly #pending = new Set<PendingFree>();
  /** Freed by this process, but still mapped by others. */
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
    this.page.initialise(options.physicalDevice);
    this.extents = new PoolExtents(fd, options.capacity, (byteLength) =>
      memory.hasFree(options.device, byteLength),
    );
  }

  /** Undefined if the system refuses. */
  static create(memory: Memory, options: PoolOptions): Pool | undefined {
    const byteLength = options.capacity + POOL_PAGE_BYTE_LENGTH;
    try {
      const fd = createFixedMemfd(POOL_NAME, byteLength);
      const address = memory.space.map(fd, byteLength);
      if (address !== undefined) return new Pool(memory, options, fd, address);
      closeFd(fd);
    } catch (error) {
      if (!(error instanceof SystemError)) throw error;
    }
    return undefined;
  }

  /** Whether it was destroyed, and its last allocation freed. */
  get isClosed(): boolean {
    return this.isDestroyed && this.#live.size === 0;
  }

  get allocationCount(): number {
    return this.#live.size;
  }

  access(device: number): number {
    return device === this.device ? 3 : (this.accessFlags.get(device) ?? 0);
  }

  /** Undefined if there is not enough memory. */
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
   * Frees in stream order: call the result when the stream reaches the free.
   *
   * @param isCounted whether the used bytes decrease now, not at the next context synchronization
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

  /** Runs the pending frees of streams that have ended. */
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

  /** A new descriptor for other processes to import. Child processes inherit it. */
  export(): number | undefined {
    const fd = libc.fcntl(this.#fd, F_DUPFD, 0);
    if (fd < 0) return undefined;
    this.isExported = true;
    return fd;
  }

  /** Releases unused reserved memory until only `keep` bytes are reserved. */
  trim(keep: number): void {
    this.#reclaim();
    this.extents.trim(keep);
  }

  /** Destroys the pool once its last allocation is freed. */
  destroy(): void {
    this.isDestroyed = true;
    this.#endIfEmpty();
  }

  /** Memory with a pending free in the same stream, if the size is equal. */
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

  /** Reclaims memory that importers have released. */
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
    if (!this.isClosed) return;
    // Importers keep their own mappings.
    this.#freedButMapped.clear();
    this.extents.clear();
    this.#memory.pools.remove(this.#mapped);
    this.#memory.space.unmap(this.#address, this.#capacity + POOL_PAGE_BYTE_LENGTH);
    closeFd(this.#fd);
  }
}

/** The granularity of reserved memory, if enough is free. */
export const POOL_CHUNK_BYTES: number = 32 << 20;

const FALLOC_FL_KEEP_SIZE = 1;
const FALLOC_FL_PUNCH_HOLE = 2;

/** The bytes of a pool's memfd by offset: those reserved of the device, and those allocated. */
export class PoolExtents {
  reservedBytes = 0;
  reservedHighWater = 0;
  readonly #fd: number;
  readonly #capacity: number;
  readonly #hasFree: (byteLength: number) => boolean;
  readonly #unreserved = new FirstFitAllocator();
  readonly #free = new FirstFitAllocator();
  readonly #extents: { start: number; byteLength: number }[] = [];

  /** @param hasFree whether the device has that much free memory */
  constructor(fd: number, capacity: number, hasFree: (byteLength: number) => boolean) {
    this.#fd = fd;
    this.#capacity = capacity;
    this.#hasFree = hasFree;
    this.#unreserved.add(0, capacity);
  }

  /**
   * Takes bytes. Undefined if there is not enough memory.
   *
   * @param reclaim called before more memory is reserved, to free what is unused
   */
  take(byteLength: number, reclaim: () => void): number | undefined {
    if (byteLength > this.#capacity) {
      // Hardware reserves all that it may before it fails, and releases it.
      if (this.#hasFree(this.#capacity - this.reservedBytes))
        this.reservedHighWater = this.#capacity;
      return undefined;
    }
    let offset = this.#free.take(byteLength);
    if (offset !== undefined) return offset;
    reclaim();
    offset = this.#free.take(byteLength) ?? this.#grow(byteLength);
    if (offset !== undefined) return offset;
    this.trim(0);
    return this.#grow(byteLength);
  }

  free(offset: number, byteLength: number): void {
    this.#free.add(offset, byteLength);
  }

  /** Releases unused memory to the device until only `keep` bytes are reserved. */
  trim(keep: number): void {
    for (const extent of [...this.#extents].reverse()) {
      if (this.reservedBytes <= keep) return;
      if (!this.#free.takeAt(extent.start, extent.byteLength)) continue;
      this.#extents.splice(this.#extents.indexOf(extent), 1);
      this.#unreserved.add(extent.start, extent.byteLength);
      this.reservedBytes -= extent.byteLength;
      const mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
      libc.fallocate(this.#fd, mode, extent.start, extent.byteLength);
    }
  }

  /** Releases everything. */
  clear(): void {
    this.reservedBytes = 0;
  }

  #grow(byteLength: number): number | undefined {
    for (const unit of [POOL_CHUNK_BYTES, GRANULARITY]) {
      const wanted = roundUp(byteLength, unit);
      if (!this.#hasFree(wanted)) continue;
      const start = this.#unreserved.take(wanted);
      if (start === undefined) continue;
      this.#extents.push({ start, byteLength: wanted });
      this.#free.add(start, wanted);
      this.reservedBytes += wanted;
      this.reservedHighWater = Math.max(this.reservedHighWater, this.reservedBytes);
      return this.#free.take(byteLength);
    }
    return undefined;
  }
}
