import { libc } from '../linux/libc.ts';
import { FirstFitAllocator } from './ranges.ts';
import { GRANULARITY, roundUp } from './space.ts';

/** What a pool reserves multiples of, where there is so much. */
export const POOL_CHUNK_BYTES: number = 32 << 20;

const FALLOC_FL_KEEP_SIZE = 1;
const FALLOC_FL_PUNCH_HOLE = 2;

/** The bytes of a pool's memfd by their offsets: what is reserved of the device, and taken of that. */
export class PoolExtents {
  reservedBytes = 0;
  reservedHighWater = 0;
  readonly #fd: number;
  readonly #capacity: number;
  readonly #hasFree: (byteLength: number) => boolean;
  readonly #unreserved = new FirstFitAllocator();
  readonly #free = new FirstFitAllocator();
  readonly #extents: { start: number; byteLength: number }[] = [];

  /** @param hasFree whether the device has so much memory to be reserved */
  constructor(fd: number, capacity: number, hasFree: (byteLength: number) => boolean) {
    this.#fd = fd;
    this.#capacity = capacity;
    this.#hasFree = hasFree;
    this.#unreserved.add(0, capacity);
  }

  /**
   * Takes so many bytes; undefined where there is not enough memory.
   *
   * @param reclaim called before more is reserved, to give back what can be
   */
  take(byteLength: number, reclaim: () => void): number | undefined {
    if (byteLength > this.#capacity) {
      // Hardware reserves all it may before it gives up, and gives it back.
      if (this.#hasFree(this.#capacity - this.reservedBytes))
        this.reservedHighWater = this.#capacity;
      return undefined;
    }
    let offset = this.#free.take(byteLength);
    if (offset !== undefined) return offset;
    reclaim();
    offset = this.#free.take(byteLength) ?? this.#grow(byteLength);
    if (offset !== undefined) return offset;
    this.trim(0);
    return this.#grow(byteLength);
  }

  free(offset: number, byteLength: number): void {
    this.#free.add(offset, byteLength);
  }

  /** Gives back to the device what is not taken, until only `keep` bytes are reserved. */
  trim(keep: number): void {
    for (const extent of [...this.#extents].reverse()) {
      if (this.reservedBytes <= keep) return;
      if (!this.#free.takeAt(extent.start, extent.byteLength)) continue;
      this.#extents.splice(this.#extents.indexOf(extent), 1);
      this.#unreserved.add(extent.start, extent.byteLength);
      this.reservedBytes -= extent.byteLength;
      const mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
      libc.fallocate(this.#fd, mode, extent.start, extent.byteLength);
    }
  }

  /** Nothing of it is there any more. */
  clear(): void {
    this.reservedBytes = 0;
  }

  #grow(byteLength: number): number | undefined {
    for (const unit of [POOL_CHUNK_BYTES, GRANULARITY]) {
      const wanted = roundUp(byteLength, unit);
      if (!this.#hasFree(wanted)) continue;
      const start = this.#unreserved.take(wanted);
      if (start === undefined) continue;
      this.#extents.push({ start, byteLength: wanted });
      this.#free.add(start, wanted);
      this.reservedBytes += wanted;
      this.reservedHighWater = Math.max(this.reservedHighWater, this.reservedBytes);
      return this.#free.take(byteLength);
    }
    return undefined;
  }
}
