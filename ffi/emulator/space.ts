/** The address space that device memory is mapped into. */
import { libc } from '../libc.ts';
import { FirstFit } from './ranges.ts';

/** What device memory is aligned to and measured in. */
export const GRANULARITY: number = 2 << 20;

const PROT_NONE = 0;
const PROT_READ_WRITE = 3;
const MAP_SHARED = 0x01;
const MAP_PRIVATE = 0x02;
const MAP_FIXED = 0x10;
const MAP_ANONYMOUS = 0x20;
const MAP_NORESERVE = 0x4000;
const INACCESSIBLE = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

const RESERVATION = 64 * 2 ** 30;

export const roundUp = (value: number, unit: number): number => Math.ceil(value / unit) * unit;

/**
 * Reserved, inaccessible addresses, where descriptors are mapped at multiples of
 * {@link GRANULARITY}. What is unmapped stays reserved, so that nothing else of the process moves
 * in there and the next mapping of that size gets the same address.
 */
export class AddressSpace {
  readonly #free = new FirstFit();

  /** Maps a descriptor, shared; undefined where the system refuses. */
  map(fd: number, byteLength: number): number | undefined {
    const extent = roundUp(byteLength, GRANULARITY);
    const address = this.#take(extent);
    if (address === undefined) return undefined;
    const mapped = libc.mmap(address, byteLength, PROT_READ_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (mapped === address) return address;
    this.#free.add(address, extent);
    return undefined;
  }

  unmap(address: number, byteLength: number): void {
    const extent = roundUp(byteLength, GRANULARITY);
    libc.mmap(address, extent, PROT_NONE, INACCESSIBLE | MAP_FIXED, -1, 0);
    this.#free.add(address, extent);
  }

  #take(extent: number): number | undefined {
    const address = this.#free.take(extent);
    if (address !== undefined) return address;
    for (const byteLength of [Math.max(RESERVATION, extent), extent]) {
      const start = libc.mmap(0, byteLength + GRANULARITY, PROT_NONE, INACCESSIBLE, -1, 0);
      // MAP_FAILED arrives as a bigint.
      if (typeof start !== 'number') continue;
      this.#free.add(roundUp(start, GRANULARITY), byteLength);
      return this.#free.take(extent);
    }
    return undefined;
  }
}
