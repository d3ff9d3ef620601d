/** Memory of this process, or shared with others. It can be freed while views of it exist. */

import type { Address } from '../types.ts';
import { errno, libc, SystemError, succeeded } from './libc.ts';

const PROT_READ_WRITE = 3;
const MAP_PRIVATE_ANONYMOUS = 0x22;
const MAP_SHARED = 1;
const MAP_FIXED = 0x10;
const MAP_NORESERVE = 0x4000;
const MADV_DONTFORK = 10;

/** Memory in whole pages. */
export interface HostMapping {
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

/** The size of the whole pages that hold so many bytes. */
export function pagesByteLength(byteLength: number): number {
  const page = libc.getpagesize();
  return Math.ceil(byteLength / page) * page;
}

/**
 * Maps at least `byteLength` bytes of zeros. The kernel allocates each page at its first use.
 *
 * @throws SystemError if the system has no memory
 */
export const mapAnonymous = (byteLength: number): HostMapping =>
  mapPages(byteLength, MAP_PRIVATE_ANONYMOUS);

/** Maps at least `byteLength` bytes of a memfd, shared with its other mappings. @throws SystemError */
export const mapMemfd = (fd: number, byteLength: number): HostMapping =>
  mapPages(byteLength, MAP_SHARED, fd);

function mapPages(byteLength: number, flags: number, fd = -1): HostMapping {
  const rounded = pagesByteLength(byteLength);
  const address = map(0, rounded, flags, fd);
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

function map(at: number, byteLength: number, flags: number, fd = -1): Address {
  const address = libc.mmap(at, byteLength, PROT_READ_WRITE, flags, fd, 0);
  // MAP_FAILED is (void *)-1, which arrives as a bigint above 2^53.
  if (typeof address !== 'number') throw new SystemError('mmap', errno());
  return address as Address;
}
