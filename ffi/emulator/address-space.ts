/** The address space that device memory is mapped into. */
import { writeSync } from 'node:fs';
import { libc } from '../linux/libc.ts';
import { FirstFitAllocator } from './ranges.ts';

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

const RESERVATION_BYTES = 64 * 2 ** 30;

export const roundUp = (value: number, unit: number): number => Math.ceil(value / unit) * unit;

/** All reservations of this thread. */
const reservations: { readonly begin: number; readonly end: number }[] = [];

/** Whether an address is of a driver of this thread. */
export const isReserved = (address: number): boolean =>
  reservations.some(({ begin, end }) => begin <= address && address < end);

/**
 * Reserved, inaccessible addresses, where descriptors are mapped at multiples of
 * {@link GRANULARITY}. What is unmapped stays reserved, so that nothing else of the process moves
 * in there and the next mapping of that size gets the same address.
 */
export class AddressSpace {
  readonly #free = new FirstFitAllocator();

  /** Maps a descriptor, shared; undefined where the system refuses. */
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

  /** Takes addresses, at `wanted` if they are free there; nothing is mapped yet. */
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

  /** Gives addresses back, where nothing is mapped any more. */
  release(address: number, extent: number): void {
    this.#free.add(address, extent);
  }

  /** Maps a descriptor at reserved addresses; false where the system refuses. */
  mapAt(address: number, fd: number, byteLength: number): boolean {
    const flags = MAP_SHARED | MAP_FIXED;
    return libc.mmap(address, byteLength, PROT_READ_WRITE, flags, fd, 0) === address;
  }

  /** Unmaps, and keeps the addresses. */
  unmapKeepingAddresses(address: number, extent: number): void {
    libc.mmap(address, extent, PROT_NONE, INACCESSIBLE | MAP_FIXED, -1, 0);
  }
}

/** What fresh memory holds in each byte: nobody may count on zeros. */
const UNINITIALIZED_BYTE = 0xa5;
/** At both ends of a large allocation so much is filled: to touch all of its pages takes long. */
const MAX_FILLED_BYTES = 4 * 2 ** 20;

/** The parts of memory that are filled when it is given out. */
const filledParts = (
  byteLength: number,
): readonly (readonly [start: number, byteLength: number])[] =>
  byteLength <= 2 * MAX_FILLED_BYTES
    ? [[0, byteLength]]
    : [
        [0, MAX_FILLED_BYTES],
        [byteLength - MAX_FILLED_BYTES, MAX_FILLED_BYTES],
      ];

/** Fills memory that is given out, which is mapped here. */
export function fillUninitialized(address: number, byteLength: number): void {
  for (const [start, length] of filledParts(byteLength))
    libc.memset(address + start, UNINITIALIZED_BYTE, length);
}

/** As {@link fillUninitialized}, of memory that is mapped nowhere yet; false where the system has none left. */
export function fillUninitializedFile(fd: number, byteLength: number): boolean {
  try {
    for (const [start, length] of filledParts(byteLength))
      writeSync(fd, Buffer.alloc(length, UNINITIALIZED_BYTE), 0, length, start);
    return true;
  } catch {
    return false;
  }
}

/** Memory outside of any device's addresses; undefined if none is left. */
export function mapSharedAnonymous(byteLength: number): number | undefined {
  const flags = MAP_SHARED | MAP_ANONYMOUS;
  const address = libc.mmap(0, byteLength, PROT_READ_WRITE, flags, -1, 0);
  return typeof address === 'number' ? address : undefined;
}

export const unmapSharedAnonymous = (address: number, byteLength: number): void => {
  libc.munmap(address, byteLength);
};
