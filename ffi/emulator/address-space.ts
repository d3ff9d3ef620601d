/** The address range that device memory is mapped into. */
import { libc } from '../linux/libc.ts';
import { withAddress } from '../native.ts';
import { FirstFitAllocator } from './ranges.ts';

/** The alignment and granularity of device memory. */
export const GRANULARITY: number = 2 << 20;

const PROT_NONE = 0;
const PROT_READ_WRITE = 3;
const MAP_SHARED = 0x01;
const MAP_PRIVATE = 0x02;
const MAP_FIXED = 0x10;
const MAP_ANONYMOUS = 0x20;
const MAP_NORESERVE = 0x4000;
const INACCESSIBLE = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

const RESERVATION_BYTES = 64 * 2 ** 30;

export const roundUp = (value: number, unit: number): number => Math.ceil(value / unit) * unit;

/** All reserved address ranges of this thread. */
const reservations: { readonly begin: number; readonly end: number }[] = [];

/** Whether an address belongs to an emulated driver of this thread. */
export const isReserved = (address: number): boolean =>
  reservations.some(({ begin, end }) => begin <= address && address < end);

/**
 * Reserved, inaccessible addresses, where descriptors are mapped at multiples of
 * {@link GRANULARITY}. Unmapped addresses stay reserved: nothing else of the process is mapped there,
 * and the next mapping of that size gets the same address.
 */
export class AddressSpace {
  readonly #free = new FirstFitAllocator();

  /** Maps a descriptor, shared. Undefined if the system refuses. */
  map(fd: number, byteLength: number): number | undefined {
    const extent = roundUp(byteLength, GRANULARITY);
    const address = this.reserve(extent);
    if (address === undefined || this.mapAt(address, fd, byteLength)) return address;
    this.release(address, extent);
    return undefined;
  }

  unmap(address: number, byteLength: number): void {
    const extent = roundUp(byteLength, GRANULARITY);
    this.unmapKeepingAddresses(address, extent);
    this.release(address, extent);
  }

  /** Reserves addresses without mapping anything, at `wanted` if that range is free. */
  reserve(extent: number, alignment = GRANULARITY, wanted = 0): number | undefined {
    if (wanted !== 0 && this.#free.takeAt(wanted, extent)) return wanted;
    const address = this.#free.take(extent, alignment);
    if (address !== undefined) return address;
    const needed = extent + alignment;
    for (const byteLength of [Math.max(RESERVATION_BYTES, needed), needed]) {
      const start = libc.mmap(0, byteLength + GRANULARITY, PROT_NONE, INACCESSIBLE, -1, 0);
      // MAP_FAILED arrives as a bigint.
      if (typeof start !== 'number') continue;
      reservations.push({ begin: start, end: start + byteLength + GRANULARITY });
      this.#free.add(roundUp(start, GRANULARITY), byteLength);
      return this.#free.take(extent, alignment);
    }
    return undefined;
  }

  /** Releases reserved addresses. Nothing may be mapped there. */
  release(address: number, extent: number): void {
    this.#free.add(address, extent);
  }

  /** Maps a descriptor at reserved addresses. Returns false if the system refuses. */
  mapAt(address: number, fd: number, byteLength: number): boolean {
    const flags = MAP_SHARED | MAP_FIXED;
    return libc.mmap(address, byteLength, PROT_READ_WRITE, flags, fd, 0) === address;
  }

  /** Unmaps memory and keeps its addresses reserved. */
  unmapKeepingAddresses(address: number, extent: number): void {
    libc.mmap(address, extent, PROT_NONE, INACCESSIBLE | MAP_FIXED, -1, 0);
  }
}

/** The value of each byte of new memory: callers must not rely on zeros. */
const UNINITIALIZED_BYTE = 0xa5;
/** The bytes to fill at each end of a large allocation: touching all pages would be slow. */
const MAX_FILLED_BYTES = 64 * 2 ** 10;

/** The parts of an allocation that are filled. */
const filledParts = (
  byteLength: number,
): readonly (readonly [start: number, byteLength: number])[] =>
  byteLength <= 2 * MAX_FILLED_BYTES
    ? [[0, byteLength]]
    : [
        [0, MAX_FILLED_BYTES],
        [byteLength - MAX_FILLED_BYTES, MAX_FILLED_BYTES],
      ];

/** Fills a new allocation that is mapped in this process. */
export function fillUninitialized(address: number, byteLength: number): void {
  for (const [start, length] of filledParts(byteLength))
    libc.memset(address + start, UNINITIALIZED_BYTE, length);
}

/**
 * Like {@link fillUninitialized}, for memory that is not mapped. Returns false if the system is out
 * of memory.
 */
export function fillUninitializedFile(fd: number, byteLength: number): boolean {
  return filledParts(byteLength).every(([start, length]) =>
    withAddress(
      Buffer.alloc(length, UNINITIALIZED_BYTE),
      (address) => libc.pwrite(fd, address, length, start) === length,
    ),
  );
}

/** Maps host memory outside of the device addresses. Undefined if the system is out of memory. */
export function mapSharedAnonymous(byteLength: number): number | undefined {
  const flags = MAP_SHARED | MAP_ANONYMOUS;
  const address = libc.mmap(0, byteLength, PROT_READ_WRITE, flags, -1, 0);
  return typeof address === 'number' ? address : undefined;
}

export const unmapSharedAnonymous = (address: number, byteLength: number): void => {
  libc.munmap(address, byteLength);
};
