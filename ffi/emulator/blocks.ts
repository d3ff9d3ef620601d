/**
 * Blocks of device memory: memfds, mapped by their owner or by an importer, and the allocations in
 * them.
 */
import { closeFd, SystemError } from '../linux/libc.ts';
import { viewMemory } from '../native.ts';
import type { Address } from '../types.ts';
import { type AddressSpace, fillUninitialized, GRANULARITY, roundUp } from './address-space.ts';
import { ALLOCATION_UNIT, BLOCK_HEADER_BYTE_LENGTH, BlockHeader } from './block-header.ts';
import type { Context } from './context.ts';
import { createFixedMemfd } from './processes.ts';
import { FirstFitAllocator, type Range, RangeMap } from './ranges.ts';

/** The name of a block's memfd. */
export const BLOCK_NAME = 'cuffi.memory';

/** A block's bytes, mapped, and its header behind them. */
export class MappedBlock implements Range {
  readonly address: number;
  readonly byteLength: number;
  readonly header: BlockHeader;
  readonly #space: AddressSpace;
  readonly #windows = new Map<number, Int32Array>();
  readonly #wideWindows = new Map<number, BigInt64Array>();

  constructor(space: AddressSpace, address: number, byteLength: number) {
    this.#space = space;
    this.address = address;
    this.byteLength = byteLength;
    this.header = new BlockHeader(address + byteLength);
  }

  /** Maps `byteLength` bytes of a block and its header. Undefined if the system refuses. */
  static map(space: AddressSpace, fd: number, byteLength: number): MappedBlock | undefined {
    const address = space.map(fd, byteLength + BLOCK_HEADER_BYTE_LENGTH);
    return address === undefined ? undefined : new MappedBlock(space, address, byteLength);
  }

  /** The block and its header must not be used afterwards. */
  unmap(): void {
    this.#windows.clear();
    this.#wideWindows.clear();
    this.#space.unmap(this.address, this.byteLength + BLOCK_HEADER_BYTE_LENGTH);
  }

  /** The aligned 32-bit word at an address of the block, for atomic access. */
  word32(address: number): readonly [words: Int32Array, index: number] {
    const offset = address - this.address;
    const window = Math.floor(offset / GRANULARITY);
    let words = this.#windows.get(window);
    if (!words) {
      const start = (this.address + window * GRANULARITY) as Address;
      words = new Int32Array(viewMemory(start, GRANULARITY));
      this.#windows.set(window, words);
    }
    return [words, (offset % GRANULARITY) / 4];
  }

  /** Like {@link word32}, with 64 bits. */
  word64(address: number): readonly [words: BigInt64Array, index: number] {
    const offset = address - this.address;
    const window = Math.floor(offset / GRANULARITY);
    let words = this.#wideWindows.get(window);
    if (!words) {
      const start = (this.address + window * GRANULARITY) as Address;
      words = new BigInt64Array(viewMemory(start, GRANULARITY));
      this.#wideWindows.set(window, words);
    }
    return [words, (offset % GRANULARITY) / 8];
  }
}

/** A live allocation. */
export interface Allocation extends Range {
  readonly block: Block;
  /** Unlike the address, never reused. */
  readonly bufferId: number;
}

/** A block that this process owns: one large allocation, or several small ones. */
export interface Block extends Range {
  readonly fd: number;
  readonly mapped: MappedBlock;
  readonly context: Context;
  readonly allocations: RangeMap<Allocation>;
  /** The free space of a block for small allocations. Undefined for a large allocation. */
  readonly holes: FirstFitAllocator | undefined;
}

/** Creates a block. Undefined if the system refuses. */
function createBlock(
  space: AddressSpace,
  context: Context,
  byteLength: number,
  holdsSmall: boolean,
): Block | undefined {
  let fd: number;
  try {
    fd = createFixedMemfd(BLOCK_NAME, byteLength + BLOCK_HEADER_BYTE_LENGTH);
  } catch (error) {
    if (error instanceof SystemError) return undefined;
    throw error;
  }
  const mapped = MappedBlock.map(space, fd, byteLength);
  if (!mapped) {
    closeFd(fd);
    return undefined;
  }
  mapped.header.initialise();
  const holes = holdsSmall ? new FirstFitAllocator() : undefined;
  holes?.add(mapped.address, byteLength);
  const { address } = mapped;
  return { address, byteLength, fd, mapped, context, allocations: new RangeMap(), holes };
}

function destroyBlock(block: Block): void {
  block.mapped.unmap();
  closeFd(block.fd);
}

const MAX_SMALL_BYTES = 2 ** 20;

/** Where blocks get addresses and device memory. */
interface BlockSource {
  readonly space: AddressSpace;
  /** Whether a device has that much free memory. */
  hasFree(device: number, byteLength: number): boolean;
  nextBufferId(): number;
}

/** The blocks of this process and their allocations. A large allocation has a block of its own. */
export class Blocks {
  readonly #source: BlockSource;
  readonly #blocks = new RangeMap<Block>();
  /** Freed by this process, but still mapped by others. */
  readonly #freedButMapped = new Set<Block>();

  constructor(ground: BlockSource) {
    this.#source = ground;
  }

  /** Undefined if there is not enough memory. */
  allocate(context: Context, byteLength: number): Allocation | undefined {
    return byteLength <= MAX_SMALL_BYTES
      ? this.#allocateSmall(context, byteLength)
      : this.#allocateLarge(context, byteLength);
  }

  free(allocation: Allocation): void {
    const { block } = allocation;
    block.allocations.remove(allocation);
    block.mapped.header.setIdAt(allocation.address - block.address, 0);
    // An empty block of small allocations is kept for the next ones.
    if (block.holes)
      block.holes.add(allocation.address, roundUp(allocation.byteLength, ALLOCATION_UNIT));
    else this.#retire(block);
  }

  /** Frees all allocations of a context. */
  releaseContext(context: Context): void {
    for (const block of [...this.#blocks]) {
      if (block.context !== context) continue;
      for (const { address } of block.allocations)
        block.mapped.header.setIdAt(address - block.address, 0);
      this.#retire(block);
    }
  }

  /** The live allocation of this process that contains an address. */
  allocationAt(address: number): Allocation | undefined {
    return this.#blocks.at(address)?.allocations.at(address);
  }

  get allocationCount(): number {
    return [...this.#blocks].reduce((sum, { allocations }) => sum + allocations.size, 0);
  }

  /** Whether one live allocation contains all these bytes. */
  isAllocated(address: number, byteLength: number): boolean {
    return this.#blocks.at(address)?.allocations.containing(address, byteLength) !== undefined;
  }

  /** Whether one block contains all these bytes, allocated or not. */
  holds(address: number, byteLength: number): boolean {
    return this.#blocks.containing(address, byteLength) !== undefined;
  }

  /** The context of the block that contains an address. */
  contextAt(address: number): Context | undefined {
    return this.#blocks.at(address)?.context;
  }

  mappedAt(address: number): MappedBlock | undefined {
    return this.#blocks.at(address)?.mapped;
  }

  /** The device memory that the blocks use. An empty block uses none. */
  usedBytes(device: number): number {
    for (const block of this.#freedButMapped) {
      if (block.mapped.header.hasImporters()) continue;
      this.#freedButMapped.delete(block);
      destroyBlock(block);
    }
    let used = 0;
    for (const block of [...this.#blocks, ...this.#freedButMapped]) {
      const isUsed = block.allocations.size > 0 || block.mapped.header.hasImporters();
      if (block.context.device === device && isUsed) used += block.byteLength;
    }
    return used;
  }

  #allocateSmall(context: Context, byteLength: number): Allocation | undefined {
    const rounded = roundUp(byteLength, ALLOCATION_UNIT);
    for (const block of this.#blocks) {
      if (block.context !== context || !block.holes) continue;
      if (block.allocations.size === 0 && !this.#canReuse(context.device, block)) continue;
      const address = block.holes.take(rounded);
      if (address !== undefined) return this.#addAllocation(block, address, byteLength);
    }
    const block = this.#createBlock(context, GRANULARITY, true);
    const address = block?.holes?.take(rounded);
    return block && address !== undefined
      ? this.#addAllocation(block, address, byteLength)
      : undefined;
  }

  #allocateLarge(context: Context, byteLength: number): Allocation | undefined {
    const block = this.#createBlock(context, roundUp(byteLength, GRANULARITY), false);
    return block && this.#addAllocation(block, block.address, byteLength);
  }

  #createBlock(context: Context, byteLength: number, isForSmall: boolean): Block | undefined {
    if (!this.#source.hasFree(context.device, byteLength)) return undefined;
    const block = createBlock(this.#source.space, context, byteLength, isForSmall);
    if (block) this.#blocks.add(block);
    return block;
  }

  /** Whether an empty block, which counts as free memory, can be used again. */
  #canReuse(device: number, block: Block): boolean {
    return block.mapped.header.hasImporters() || this.#source.hasFree(device, block.byteLength);
  }

  #addAllocation(block: Block, address: number, byteLength: number): Allocation {
    const allocation = { address, byteLength, block, bufferId: this.#source.nextBufferId() };
    fillUninitialized(address, byteLength);
    block.allocations.add(allocation);
    block.mapped.header.setIdAt(address - block.address, allocation.bufferId);
    return allocation;
  }

  /** The memory is freed once the last importer has unmapped it. */
  #retire(block: Block): void {
    this.#blocks.remove(block);
    if (block.mapped.header.hasImporters()) this.#freedButMapped.add(block);
    else destroyBlock(block);
  }
}
