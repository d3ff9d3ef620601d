/** Memory of this process alone, of no file: mapped, retired while views of it live, unmapped. */

import type { Address } from '../types.ts';
import { errno, libc, SystemError, succeeded } from './libc.ts';

const PROT_READ_WRITE = 3;
const MAP_PRIVATE_ANONYMOUS = 0x22;
const MAP_FIXED = 0x10;
const MAP_NORESERVE = 0x4000;
const MADV_DONTFORK = 10;

/** Zeroed memory in whole pages, each of which is made when it is first touched. */
export interface AnonymousMapping {
  readonly address: Address;
  /** What was asked for, rounded up to whole pages. */
  readonly byteLength: number;
  /**
   * Gives the memory back and leaves its addresses mapped: who still has a view of it reads zeros.
   */
  retire(): void;
  /** Touching a view of it afterwards kills the process. */
  unmap(): void;
}

/** Maps at least `byteLength` bytes. @throws SystemError where the system has no room */
export function mapAnonymous(byteLength: number): AnonymousMapping {
  const page = libc.getpagesize();
  const rounded = Math.ceil(byteLength / page) * page;
  const address = map(0, rounded, MAP_PRIVATE_ANONYMOUS);
  const unmap = (): void => {
    succeeded(libc.munmap(address, rounded), 'munmap');
  };
  // Between fork and exec a child shares the pages: a write here would then move the page away
  // from the device that works on it.
  if (libc.madvise(address, rounded, MADV_DONTFORK) < 0) {
    const number = errno();
    unmap();
    throw new SystemError('madvise', number);
  }
  return {
    address,
    byteLength: rounded,
    retire: () => {
      map(address, rounded, MAP_PRIVATE_ANONYMOUS | MAP_FIXED | MAP_NORESERVE);
    },
    unmap,
  };
}

function map(at: number, byteLength: number, flags: number): Address {
  const address = libc.mmap(at, byteLength, PROT_READ_WRITE, flags, -1, 0);
  // MAP_FAILED is (void *)-1, which arrives as a bigint above 2^53.
  if (typeof address !== 'number') throw new SystemError('mmap', errno());
  return address as Address;
}
