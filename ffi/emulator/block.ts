/** Blocks of device memory: memfds, mapped here by their owner or by an importer. */
import { closeFd, libc, SystemError, succeeded } from '../linux/libc.ts';
import { viewMemory, withAddress } from '../native.ts';
import type { Address } from '../types.ts';
import type { Context } from './context.ts';
import { FirstFitAllocator, type Range, RangeMap } from './ranges.ts';
import { type AddressSpace, GRANULARITY } from './space.ts';
import { BLOCK_HEADER_BYTE_LENGTH, BlockHeader } from './trailer.ts';

/** The name of a block's memfd. */
export const BLOCK_NAME = 'cuffi.memory';

const MFD_CLOEXEC = 1;
const MFD_ALLOW_SEALING = 2;
const F_ADD_SEALS = 1033;
const F_SEAL_SEAL_SHRINK_GROW = 7;

/** A memfd that can never change its size: no importer's mapping loses its ground. */
export function createSealedMemfd(name: string, byteLength: number): number {
  const fd = withAddress(Buffer.from(`${name}\0`), (address) =>
    succeeded(libc.memfd_create(address, MFD_CLOEXEC | MFD_ALLOW_SEALING), 'memfd_create'),
  );
  try {
    succeeded(libc.ftruncate(fd, byteLength), 'ftruncate');
    succeeded(libc.fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL_SHRINK_GROW), 'fcntl');
  } catch (error) {
    closeFd(fd);
    throw error;
  }
  return fd;
}

/** A block's bytes and its trailer, mapped one behind the other. */
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

  /** Maps `byteLength` bytes of a block and its trailer; undefined where the system refuses. */
  static map(space: AddressSpace, fd: number, byteLength: number): MappedBlock | undefined {
    const address = space.map(fd, byteLength + BLOCK_HEADER_BYTE_LENGTH);
    return address === undefined ? undefined : new MappedBlock(space, address, byteLength);
  }

  /** Nothing of the block, its trailer included, may be touched afterwards. */
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

  /** As {@link word32}, of 64 bits. */
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

/** Memory that was asked for, and not freed yet. */
export interface Allocation extends Range {
  readonly block: Block;
  /** Unlike the address, never the same again. */
  readonly bufferId: number;
}

/** A block that this process owns: one large allocation, or many small ones. */
export interface Block extends Range {
  readonly fd: number;
  readonly mapped: MappedBlock;
  readonly context: Context;
  readonly allocations: RangeMap<Allocation>;
  /** What is free in a block of small allocations; undefined for a large one's. */
  readonly holes: FirstFitAllocator | undefined;
}

/** Makes a block; undefined where the system refuses. */
export function createBlock(
  space: AddressSpace,
  context: Context,
  byteLength: number,
  holdsSmall: boolean,
): Block | undefined {
  let fd: number;
  try {
    fd = createSealedMemfd(BLOCK_NAME, byteLength + BLOCK_HEADER_BYTE_LENGTH);
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

export function destroyBlock(block: Block): void {
  block.mapped.unmap();
  closeFd(block.fd);
}
