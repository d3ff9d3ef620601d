/** Device memory: what is mapped, how much is free, and what an address means. */

import { readFileSync } from 'node:fs';
import { isMainThread } from 'node:worker_threads';
import { CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_READWRITE } from '../constants.ts';
import { libc } from '../linux/libc.ts';
import { AddressSpace, isReserved } from './address-space.ts';
import { Blocks, type MappedBlock } from './blocks.ts';
import type { Context, Contexts } from './context.ts';
import type { HostMemory } from './host-memory.ts';
import { type Range, RangeMap } from './ranges.ts';
import type { Settings } from './settings.ts';

/** Memory of another process, opened here. */
export interface ForeignAllocation extends Range {
  readonly context: Context;
  readonly bufferId: number;
  readonly mapped: MappedBlock;
}

/** Host memory that was made known to the driver. */
export interface Registration extends Range {
  /** Whether devices may only read it. */
  readonly isReadOnly: boolean;
  readonly flags: number;
  readonly context: Context;
  readonly bufferId: number;
}

/** All memory that the device can reach. */
export class Memory {
  readonly space: AddressSpace = new AddressSpace();
  readonly blocks: Blocks = new Blocks(this);
  readonly imports: RangeMap<ForeignAllocation> = new RangeMap<ForeignAllocation>();
  readonly registrations: RangeMap<Registration> = new RangeMap<Registration>();
  readonly regions: Regions = new Regions();
  /** What the pools of this process have mapped, given out or not. */
  readonly pools: RangeMap<Range> = new RangeMap<Range>();
  readonly #host: HostMemory;
  readonly #contexts: Contexts;
  readonly #total: number;
  /** What takes device memory besides blocks, and who gives some back when there is too little. */
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

  /** Counts what `used` says as used memory of a device. */
  onUsage(used: (device: number) => number): void {
    this.#usageCounters.push(used);
  }

  /** Has `relieve` called where a device has too little memory left. */
  onPressure(relieve: (device: number) => void): void {
    this.#pressureListeners.push(relieve);
  }

  /** Whether a device has so much memory, after what can be given back was. */
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

  /** Whether new work of a device can read all these bytes, as part of one allocation. */
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
   * Whether an address is in another device's memory that work of a context was given no access to.
   * Copies do without: only the processors of a device ask.
   */
  isInaccessible(address: number, context: Context): boolean {
    const owner = this.blocks.contextAt(address) ?? this.imports.at(address)?.context;
    return owner !== undefined && !this.#contexts.canAccess(context, owner);
  }

  /** As {@link canRead}, where bytes that follow each other may be of several mappings. */
  canReadAcross(address: number, byteLength: number, device: number): boolean {
    return (
      !this.regions.at(address)?.isFreed && this.#isReachable(address, byteLength, device, READ)
    );
  }

  /** Whether work that was accepted can still read: memory that is freed may stay mapped. */
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

  /** Whether an address is in memory that is never taken for the host's. */
  isDeviceRegion(address: number): boolean {
    const kind = this.regions.at(address)?.kind;
    const isReadOnly = this.registrations.at(address)?.isReadOnly ?? false;
    return isReadOnly || kind === 'pool' || kind === 'virtual';
  }

  /** Whether an address is known to the driver at all. */
  isKnown(address: number): boolean {
    return (
      this.#isDeviceMemory(address, 1) ||
      this.regions.at(address) !== undefined ||
      this.registrations.at(address) !== undefined
    );
  }

  /** Copies between any two places; false where one is not mapped (any more). */
  copy(to: number, from: number, byteLength: number): boolean {
    if (!this.#isMapped(to, byteLength) || !this.#isMapped(from, byteLength))
      return this.#host.copy(to, from, byteLength);
    libc.memmove(to, from, byteLength);
    return true;
  }

  /** The 32-bit word at an aligned address; undefined where the device cannot reach it. */
  load(address: number): number | undefined {
    const mapped = this.#mappedAt(address);
    return mapped ? Atomics.load(...mapped.word32(address)) : this.#host.getInt32(address);
  }

  store(address: number, value: number): void {
    const mapped = this.#mappedAt(address);
    if (mapped) Atomics.store(...mapped.word32(address), value | 0);
    else this.#host.setInt32(address, value);
  }

  /** As {@link load}, of 64 bits at an address that is a multiple of 8. */
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

  /** Whether it is mapped as what was freed there, and nothing else is there now. */
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

/** Memory of other kinds than plain device memory: pools, pinned, managed, virtual. */

/** A range that devices reach, and what is to be told of it. */
export interface Region extends Range {
  readonly kind: 'pool' | 'host' | 'managed' | 'virtual';
  /** The bytes that were asked for; `byteLength` may be rounded up from it. */
  readonly requestedByteLength: number;
  readonly device: number;
  /** Whose end is the memory's; undefined for memory that belongs to no context. */
  readonly context: Context | undefined;
  readonly bufferId: number;
  /** What it may be shared by, as bits. */
  readonly handleTypes: number;
  /** Pool memory whose free was called: work queued before still reaches it, new work does not. */
  readonly isFreed?: boolean;
  /** The reserved addresses that it is mapped in, if it is. */
  readonly reservation?: Range;
  /** The handle of its pool, or 0. */
  readonly poolHandle: number;
  /** What a device may do with it: nothing 0, read 1, read and write 3. */
  access(device: number): number;
}

const READ: number = CU_MEM_ACCESS_FLAGS_PROT_READ;
export const WRITE: number = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/** Regions by address. */
export class Regions extends RangeMap<Region> {
  /** Whether a device may do `wanted` with all these bytes: one region, or mappings in a row. */
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

  /** Whether new work may be given these bytes: one region's, and not freed. */
  acceptsNewWork(address: number, byteLength: number): boolean {
    const region = this.containing(address, byteLength);
    return region !== undefined && !region.isFreed;
  }

  /** Whether these bytes are mapped here, whoever may use them. */
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
 * Device memory of the other threads of this process, each of which has an emulated driver of its own: it
 * is mapped for all of them, and the system knows where.
 */

const MAPS = '/proc/self/maps';
/** The memfds that device memory is in: see BLOCK_NAME and its like. */
const DEVICE_MEMORY = /^([\da-f]+)-([\da-f]+) rw.*\/memfd:cuffi\.(?:memory|pool|virtual)/gm;

function* deviceMemory(): Generator<readonly [begin: number, end: number]> {
  for (const [, begin = '', end = ''] of readFileSync(MAPS, 'latin1').matchAll(DEVICE_MEMORY))
    yield [Number.parseInt(begin, 16), Number.parseInt(end, 16)];
}

/** Whether there may be other threads with device memory: to look for it takes long. */
let hasThreads = !isMainThread || !deviceMemory().next().done;
process.on('worker', () => {
  hasThreads = true;
});

/** Whether all these bytes are device memory that another thread has mapped. */
function isMemoryOfOtherThread(address: number, byteLength: number): boolean {
  if (!hasThreads || isReserved(address)) return false;
  let at = address;
  for (const [begin, end] of deviceMemory()) {
    if (begin > at) return false;
    if (end > at) at = end;
    if (at >= address + byteLength) return true;
  }
  return false;
}
