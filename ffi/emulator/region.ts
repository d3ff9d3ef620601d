/** Memory of other kinds than plain device memory: pools, pinned, managed, virtual. */
import { CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_READWRITE } from '../constants.ts';
import type { Context } from './context.ts';
import { type Range, RangeMap } from './ranges.ts';

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

export const READ: number = CU_MEM_ACCESS_FLAGS_PROT_READ;
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
