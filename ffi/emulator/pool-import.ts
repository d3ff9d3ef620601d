/** Pools of other processes, and allocations of them that this process has imported. */

import { GRANULARITY } from './address-space.ts';
import type { Contexts } from './context.ts';
import type { Handles } from './handles.ts';
import type { Memory } from './memory.ts';
import { POOL_NAME, type PoolRegion } from './pool.ts';
import { POOL_PAGE_BYTE_LENGTH, PoolPage, type SharedAllocation } from './pool-page.ts';
import { inspectMemfd, type ProcessIdentity } from './processes.ts';

/** An imported allocation. */
export interface ImportedRegion extends PoolRegion {
  readonly owner: ImportedPool;
  readonly importerSlot: number;
}

export class ImportedPool {
  readonly handle: number;
  readonly page: PoolPage;
  readonly generation: string;
  /** -1 if this process does not see it. */
  readonly device: number;
  readonly accessFlags = new Map<number, number>();
  /** The number of imports. Each is destroyed separately. */
  importCount = 1;
  readonly #memory: Memory;
  readonly #address: number;
  readonly #capacity: number;
  readonly #regions = new Map<number, ImportedRegion>();

  constructor(
    memory: Memory,
    contexts: Contexts,
    handle: number,
    address: number,
    capacity: number,
  ) {
    this.#memory = memory;
    this.handle = handle;
    this.#address = address;
    this.#capacity = capacity;
    this.page = new PoolPage(address + capacity);
    this.generation = this.page.isValid ? this.page.generation : '';
    this.device = contexts.visibleDevice(this.page.device);
  }

  access(device: number): number {
    return device === this.device ? 3 : (this.accessFlags.get(device) ?? 0);
  }

  /** Imports an allocation. Repeated imports return the same. Undefined if it cannot be imported. */
  import(shared: SharedAllocation, self: ProcessIdentity): ImportedRegion | undefined {
    const known = this.#regions.get(shared.offset);
    if (known && known.shared?.id === shared.id)
      return known.isFreed || known.requestedByteLength !== shared.byteLength ? undefined : known;
    const address = this.#address + shared.offset;
    const isInside = shared.offset + shared.byteLength <= this.#capacity;
    if (!isInside || this.#memory.regions.overlaps(address, shared.byteLength)) return undefined;
    // Hardware does not check whether the owner has freed it.
    const importerSlot = this.page.addImporter(shared.slot, self);
    if (importerSlot === undefined) return undefined;
    const region: ImportedRegion = {
      kind: 'pool',
      address,
      byteLength: shared.byteLength,
      requestedByteLength: shared.byteLength,
      device: this.device,
      context: undefined,
      bufferId: this.#memory.nextBufferId(),
      handleTypes: 0,
      poolHandle: this.handle,
      access: (device) => this.access(device),
      pool: undefined,
      isFreed: false,
      shared,
      owner: this,
      importerSlot,
    };
    this.#regions.set(shared.offset, region);
    this.#memory.regions.add(region);
    return region;
  }

  /** Unmaps an allocation, for all of its imports. */
  free(region: ImportedRegion): void {
    this.#memory.regions.remove(region);
    if (region.shared) this.#regions.delete(region.shared.offset);
    this.page.removeImporter(region.importerSlot);
  }

  /** How many allocations of it are mapped. */
  get allocationCount(): number {
    return this.#regions.size;
  }

  /** Whether allocations of it are mapped. */
  get isUsed(): boolean {
    return this.allocationCount > 0;
  }

  unmap(): void {
    this.#memory.space.unmap(this.#address, this.#capacity + POOL_PAGE_BYTE_LENGTH);
  }
}

export class ImportedPools {
  readonly #memory: Memory;
  readonly #handles: Handles;
  readonly #contexts: Contexts;
  readonly #all = new Map<number, ImportedPool>();
  readonly #destroyed = new Set<number>();

  constructor(memory: Memory, handles: Handles, contexts: Contexts) {
    this.#memory = memory;
    this.#handles = handles;
    this.#contexts = contexts;
  }

  /** How often pools were imported and not destroyed. */
  get importCount(): number {
    return [...this.#all.values()].reduce((sum, { importCount }) => sum + importCount, 0);
  }

  get allocationCount(): number {
    return [...this.#all.values()].reduce((sum, pool) => sum + pool.allocationCount, 0);
  }

  get(handle: number): ImportedPool | undefined {
    return this.#all.get(handle);
  }

  /** Imports the pool of a descriptor, which the caller keeps. Undefined if it is not a pool's. */
  import(fd: number): ImportedPool | undefined {
    const file = inspectMemfd(fd);
    const capacity = (file?.byteLength ?? 0) - POOL_PAGE_BYTE_LENGTH;
    if (file?.name !== POOL_NAME || !(capacity > 0) || capacity % GRANULARITY !== 0)
      return undefined;
    const address = this.#memory.space.map(fd, file.byteLength);
    if (address === undefined) return undefined;
    const pool = new ImportedPool(
      this.#memory,
      this.#contexts,
      this.#handles.make('CUmemoryPool'),
      address,
      capacity,
    );
    const known = [...this.#all.values()].find(({ generation }) => generation === pool.generation);
    if (known || !pool.page.isValid || !this.#contexts.hasDevice(pool.device)) {
      pool.unmap();
      if (known) known.importCount += 1;
      return known;
    }
    this.#all.set(pool.handle, pool);
    return pool;
  }

  /** Undoes one import. Returns false if allocations of the pool are still mapped. */
  destroy(pool: ImportedPool): boolean {
    if (pool.isUsed) return false;
    pool.importCount -= 1;
    if (pool.importCount > 0) return true;
    this.#all.delete(pool.handle);
    this.#destroyed.add(pool.handle);
    pool.unmap();
    return true;
  }

  /** Hardware accepts destroying a pool more often than it was imported. */
  wasDestroyed(handle: number): boolean {
    return this.#destroyed.has(handle);
  }
}
