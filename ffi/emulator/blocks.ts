import {
  type Allocation,
  type Block,
  createBlock,
  destroyBlock,
  type MappedBlock,
} from './block.ts';
import type { Context } from './context.ts';
import { RangeMap } from './ranges.ts';
import { type AddressSpace, fillUninitialized, GRANULARITY, roundUp } from './space.ts';
import { ALLOCATION_UNIT } from './trailer.ts';

const MAX_SMALL_BYTES = 2 ** 20;

/** What blocks are made of. */
interface BlockSource {
  readonly space: AddressSpace;
  /** Whether a device has so much memory. */
  hasFree(device: number, byteLength: number): boolean;
  nextBufferId(): number;
}

/** The blocks of device memory, and what is allocated in them: large ones have one of their own. */
export class Blocks {
  readonly #source: BlockSource;
  readonly #blocks = new RangeMap<Block>();
  /** Freed here, and still mapped by other processes. */
  readonly #freedButMapped = new Set<Block>();

  constructor(ground: BlockSource) {
    this.#source = ground;
  }

  /** Undefined where there is not enough memory. */
  allocate(context: Context, byteLength: number): Allocation | undefined {
    return byteLength <= MAX_SMALL_BYTES
      ? this.#allocateSmall(context, byteLength)
      : this.#allocateLarge(context, byteLength);
  }

  free(allocation: Allocation): void {
    const { block } = allocation;
    block.allocations.remove(allocation);
    block.mapped.header.setIdAt(allocation.address - block.address, 0);
    // An emptied block of small allocations stays, for the next ones.
    if (block.holes)
      block.holes.add(allocation.address, roundUp(allocation.byteLength, ALLOCATION_UNIT));
    else this.#retire(block);
  }

  /** Frees all that is allocated in a context. */
  releaseContext(context: Context): void {
    for (const block of [...this.#blocks]) {
      if (block.context !== context) continue;
      for (const { address } of block.allocations)
        block.mapped.header.setIdAt(address - block.address, 0);
      this.#retire(block);
    }
  }

  /** The living allocation of this process that an address lies in. */
  allocationAt(address: number): Allocation | undefined {
    return this.#blocks.at(address)?.allocations.at(address);
  }

  /** Whether all these bytes are of one living allocation. */
  isAllocated(address: number, byteLength: number): boolean {
    return this.#blocks.at(address)?.allocations.containing(address, byteLength) !== undefined;
  }

  /** Whether all these bytes are of one block, allocated or not. */
  holds(address: number, byteLength: number): boolean {
    return this.#blocks.containing(address, byteLength) !== undefined;
  }

  /** The context whose block an address lies in. */
  contextAt(address: number): Context | undefined {
    return this.#blocks.at(address)?.context;
  }

  mappedAt(address: number): MappedBlock | undefined {
    return this.#blocks.at(address)?.mapped;
  }

  /** How much of a device they take: an emptied one takes nothing. */
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

  /** Whether an emptied block, which counts as free, can be used again. */
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

  /** The memory itself goes when the last importer has gone. */
  #retire(block: Block): void {
    this.#blocks.remove(block);
    if (block.mapped.header.hasImporters()) this.#freedButMapped.add(block);
    else destroyBlock(block);
  }
}
