/** Anonymous memory of this process. It can be freed while views of it exist. */

import type { Address } from '../types.ts';
import { errno, libc, SystemError, succeeded } from './libc.ts';

const PROT_READ_WRITE = 3;
const MAP_PRIVATE_ANONYMOUS = 0x22;
const MAP_FIXED = 0x10;
const MAP_NORESERVE = 0x4000;
const MADV_DONTFORK = 10;

/** Zeroed memory in whole pages. The kernel allocates each page at its first use. */
export interface AnonymousMapping {
  readonly address: Address;
  /** The requested size, rounded up to whole pages. */
  readonly byteLength: number;
  /**
   * Frees the memory but leaves its addresses mapped: views of it then read zeros.
   */
  retire(): void;
  /** Touching a view of it afterwards kills the process. */
  unmap(): void;
}

/** Maps at least `byteLength` bytes. @throws SystemError if the system has no memory */
export function mapAnonymous(byteLength: number): AnonymousMapping {
  const page = libc.getpagesize();
  const rounded = Math.ceil(byteLength / page) * page;
  const address = map(0, rounded, MAP_PRIVATE_ANONYMOUS);
  const unmap = (): void => {
    succeeded(libc.munmap(address, rounded), 'munmap');
  };
  // Between fork and exec a child shares the pages (copy on write). A write here would then replace
  // the page that a device works on.
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
