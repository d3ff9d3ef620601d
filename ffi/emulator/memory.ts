/**
 * All memory that devices can access: what is mapped, how much is free, what an address refers to.
 */

import { isMainThread } from 'node:worker_threads';
import { CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_READWRITE } from '../constants.ts';
import { libc } from '../linux/libc.ts';
import { AddressSpace, isReserved } from './address-space.ts';
import { Blocks, type MappedBlock } from './blocks.ts';
import type { Context, Contexts } from './context.ts';
import type { HostMemory } from './host-memory.ts';
import { hasMapping, isMappedBy, type ProcessMapping } from './process-mappings.ts';
import { type Range, RangeMap } from './ranges.ts';
import type { Settings } from './settings.ts';

/** Memory of another process that this process has opened. */
export interface ForeignAllocation extends Range {
  readonly context: Context;
  readonly bufferId: number;
  readonly mapped: MappedBlock;
}

/** Registered host memory. */
export interface Registration extends Range {
  /** Whether devices may only read it. */
  readonly isReadOnly: boolean;
  readonly flags: number;
  readonly context: Context;
  readonly bufferId: number;
}

/** All memory that devices can access. */
export class Memory {
  readonly space: AddressSpace = new AddressSpace();
  readonly blocks: Blocks = new Blocks(this);
  readonly imports: RangeMap<ForeignAllocation> = new RangeMap<ForeignAllocation>();
  readonly registrations: RangeMap<Registration> = new RangeMap<Registration>();
  readonly regions: Regions = new Regions();
  /** The mapped ranges of this process's pools, allocated or not. */
  readonly pools: RangeMap<Range> = new RangeMap<Range>();
  readonly #host: HostMemory;
  readonly #contexts: Contexts;
  readonly #total: number;
  /** Functions that count device memory besides blocks, and functions that release some on demand. */
  readonly #usageCounters: ((device: number) => number)[] = [];
  readonly #pressureListeners: ((device: number) => void)[] = [];
  #lastBufferId = 0;

  constructor(settings: Settings, contexts: Contexts, host: HostMemory) {
    this.#host = host;
    this.#contexts = contexts;
    this.#total = settings.memoryByteLength;
    contexts.onEnd((context) => this.#release(context));
  }

  nextBufferId(): number {
    this.#lastBufferId += 1;
    return this.#lastBufferId;
  }

  /** Registers a function that returns the used memory of a device. */
  onUsage(used: (device: number) => number): void {
    this.#usageCounters.push(used);
  }

  /** Registers a function that releases memory of a device if there is too little. */
  onPressure(relieve: (device: number) => void): void {
    this.#pressureListeners.push(relieve);
  }

  /** Whether a device has that much free memory. Releases unused memory first if necessary. */
  hasFree(device: number, byteLength: number): boolean {
    if (byteLength <= this.freeBytes(device)) return true;
    for (const relieve of this.#pressureListeners) relieve(device);
    return byteLength <= this.freeBytes(device);
  }

  freeBytes(device: number): number {
    const used = this.#usageCounters.reduce((sum, usage) => sum + usage(device), 0);
    return this.#total - used - this.blocks.usedBytes(device);
  }

  get totalBytes(): number {
    return this.#total;
  }

  /** Whether new work of a device may read all these bytes, as part of one allocation. */
  canRead(address: number, byteLength: number, device: number): boolean {
    return (
      this.#acceptsNewWork(address, byteLength) &&
      this.#isReachable(address, byteLength, device, READ)
    );
  }

  canWrite(address: number, byteLength: number, device: number): boolean {
    return (
      this.#acceptsNewWork(address, byteLength) &&
      this.#isReachable(address, byteLength, device, WRITE)
    );
  }

  /**
   * Whether an address is in memory of another device that a context has no peer access to. Copies
   * need no peer access; kernels, fills and stream memory operations do.
   */
  isInaccessible(address: number, context: Context): boolean {
    const owner = this.blocks.contextAt(address) ?? this.imports.at(address)?.context;
    return owner !== undefined && !this.#contexts.canAccess(context, owner);
  }

  /** Like {@link canRead}, but the bytes may be in several adjacent mappings. */
  canReadAcross(address: number, byteLength: number, device: number): boolean {
    return (
      !this.regions.at(address)?.isFreed && this.#isReachable(address, byteLength, device, READ)
    );
  }

  /** Whether queued work can still read: freed memory may stay mapped. */
  canStillRead(address: number, byteLength: number, device: number): boolean {
    return (
      this.#isReachable(address, byteLength, device, READ) ||
      this.#isFreedButMapped(address, byteLength)
    );
  }

  canStillWrite(address: number, byteLength: number, device: number): boolean {
    return (
      this.#isReachable(address, byteLength, device, WRITE) ||
      this.#isFreedButMapped(address, byteLength)
    );
  }

  /** Whether an address is in memory that the driver never treats as host memory. */
  isDeviceRegion(address: number): boolean {
    const kind = this.regions.at(address)?.kind;
    const isReadOnly = this.registrations.at(address)?.isReadOnly ?? false;
    return isReadOnly || kind === 'pool' || kind === 'virtual';
  }

  /** Whether an address is in memory of a device, not in host or managed memory. */
  isOnDevice(address: number): boolean {
    const kind = this.regions.at(address)?.kind;
    return kind === 'pool' || kind === 'virtual' || this.#isDeviceMemory(address, 1);
  }

  /** Whether the driver knows an address. */
  isKnown(address: number): boolean {
    return (
      this.#isDeviceMemory(address, 1) ||
      this.regions.at(address) !== undefined ||
      this.registrations.at(address) !== undefined
    );
  }

  /** Copies between any two addresses. Returns false if one is not mapped. */
  copy(to: number, from: number, byteLength: number): boolean {
    if (!this.#isMapped(to, byteLength) || !this.#isMapped(from, byteLength))
      return this.#host.copy(to, from, byteLength);
    libc.memmove(to, from, byteLength);
    return true;
  }

  /** The 32-bit word at an aligned address. Undefined if it cannot be read. */
  load(address: number): number | undefined {
    const mapped = this.#mappedAt(address);
    return mapped ? Atomics.load(...mapped.word32(address)) : this.#host.getInt32(address);
  }

  store(address: number, value: number): void {
    const mapped = this.#mappedAt(address);
    if (mapped) Atomics.store(...mapped.word32(address), value | 0);
    else this.#host.setInt32(address, value);
  }

  /** Like {@link load}, with 64 bits at an address that is a multiple of 8. */
  load64(address: number): bigint | undefined {
    const mapped = this.#mappedAt(address);
    return mapped ? Atomics.load(...mapped.word64(address)) : this.#host.getUint64(address);
  }

  store64(address: number, value: bigint): void {
    const mapped = this.#mappedAt(address);
    if (mapped) Atomics.store(...mapped.word64(address), BigInt.asIntN(64, value));
    else this.#host.setBigUint64(address, value);
  }

  #isReachable(address: number, byteLength: number, device: number, wanted: number): boolean {
    return (
      this.#isDeviceMemory(address, byteLength) ||
      this.#isRegistered(address, byteLength, wanted) ||
      this.regions.allows(address, byteLength, device, wanted) ||
      isMemoryOfOtherThread(address, byteLength)
    );
  }

  #isRegistered(address: number, byteLength: number, wanted: number): boolean {
    const registration = this.registrations.containing(address, byteLength);
    return registration !== undefined && (wanted === READ || !registration.isReadOnly);
  }

  /** Whether freed memory is still mapped there, and no other memory is. */
  #isFreedButMapped(address: number, byteLength: number): boolean {
    const isInBlock = this.blocks.holds(address, byteLength);
    const isInPool = this.pools.containing(address, byteLength) !== undefined;
    return (isInBlock || isInPool) && this.regions.at(address) === undefined;
  }

  #acceptsNewWork(address: number, byteLength: number): boolean {
    return (
      this.regions.at(address) === undefined || this.regions.acceptsNewWork(address, byteLength)
    );
  }

  #isMapped(address: number, byteLength: number): boolean {
    return this.#isDeviceMemory(address, byteLength) || this.regions.isMapped(address, byteLength);
  }

  #mappedAt(address: number): MappedBlock | undefined {
    return this.blocks.mappedAt(address) ?? this.imports.at(address)?.mapped;
  }

  #isDeviceMemory(address: number, byteLength: number): boolean {
    return (
      this.imports.containing(address, byteLength) !== undefined ||
      this.blocks.isAllocated(address, byteLength)
    );
  }

  #release(context: Context): void {
    this.blocks.releaseContext(context);
    for (const registration of [...this.registrations])
      if (registration.context === context) this.registrations.remove(registration);
  }
}

// ---- Regions: memory of pools, pinned, managed and virtual memory ----

/** A memory range that devices can access, and its attributes. */
export interface Region extends Range {
  readonly kind: 'pool' | 'host' | 'managed' | 'virtual';
  /** The requested size. `byteLength` may be rounded up from it. */
  readonly requestedByteLength: number;
  readonly device: number;
  /** The context that the memory ends with, if it belongs to one. */
  readonly context: Context | undefined;
  readonly bufferId: number;
  /** The handle types that it can be shared by, as bits. */
  readonly handleTypes: number;
  /** Pool memory that was freed: work queued before may still use it, new work may not. */
  readonly isFreed?: boolean;
  /** The address reservation that contains it, for virtual memory. */
  readonly reservation?: Range;
  /** The handle of its pool, or 0. */
  readonly poolHandle: number;
  /** The access of a device: none 0, read 1, read and write 3. */
  access(device: number): number;
}

const READ: number = CU_MEM_ACCESS_FLAGS_PROT_READ;
export const WRITE: number = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/** Regions by address. */
export class Regions extends RangeMap<Region> {
  /**
   * Whether a device has the access `wanted` to all these bytes, in one region or adjacent
   * mappings.
   */
  allows(address: number, byteLength: number, device: number, wanted: number): boolean {
    const end = address + byteLength;
    let at = address;
    for (;;) {
      const region = this.at(at);
      if (!region || (region.access(device) & wanted) !== wanted) return false;
      at = region.address + region.byteLength;
      if (at >= end) return true;
      if (region.kind !== 'virtual' || this.at(at)?.kind !== 'virtual') return false;
    }
  }

  /** Whether new work may use these bytes: all in one region that is not freed. */
  acceptsNewWork(address: number, byteLength: number): boolean {
    const region = this.containing(address, byteLength);
    return region !== undefined && !region.isFreed;
  }

  /** Whether these bytes are mapped, regardless of access. */
  isMapped(address: number, byteLength: number): boolean {
    for (let at = address; ; ) {
      const region = this.at(at);
      if (!region) return false;
      at = region.address + region.byteLength;
      if (at >= address + byteLength) return true;
    }
  }
}

/**
 * Device memory of other threads of this process. Each thread has an emulated driver of its own, but
 * their mappings are valid in all threads, and /proc/self/maps lists them.
 */

/** Memfds with device memory: see BLOCK_NAME, POOL_NAME and virtual.ts. */
const DEVICE_MEMORY = /^\/memfd:cuffi\.(?:memory|pool|virtual)/;
const isDeviceMemory = ({ isReadable, isWritable, path }: ProcessMapping): boolean =>
  isReadable && isWritable && DEVICE_MEMORY.test(path);

/** Whether other threads may have device memory. Searching the mappings is slow. */
let hasThreads = !isMainThread || hasMapping(isDeviceMemory);
process.on('worker', () => {
  hasThreads = true;
});

/** Whether all these bytes are device memory that another thread has mapped. */
const isMemoryOfOtherThread = (address: number, byteLength: number): boolean =>
  hasThreads && !isReserved(address) && isMappedBy(address, byteLength, isDeviceMemory);
