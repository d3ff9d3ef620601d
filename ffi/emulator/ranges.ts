/** Address ranges: finding the range of an address, and allocating free ranges. */

export interface Range {
  readonly address: number;
  readonly byteLength: number;
}

/** Disjoint ranges, found by any address inside. */
export class RangeMap<R extends Range> implements Iterable<R> {
  readonly #sorted: R[] = [];

  get size(): number {
    return this.#sorted.length;
  }

  [Symbol.iterator](): Iterator<R> {
    return this.#sorted.values();
  }

  /** The index of the first range that ends after `address`. */
  #index(address: number): number {
    let low = 0;
    let high = this.#sorted.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      const range = this.#sorted[middle] as R;
      if (range.address + range.byteLength <= address) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  add(range: R): void {
    this.#sorted.splice(this.#index(range.address), 0, range);
  }

  remove(range: R): void {
    const at = this.#index(range.address);
    if (this.#sorted[at] === range) this.#sorted.splice(at, 1);
  }

  /** The range that contains `address`. */
  at(address: number): R | undefined {
    const range = this.#sorted[this.#index(address)];
    return range && range.address <= address ? range : undefined;
  }

  /** The range that contains all `byteLength` bytes from `address` on. */
  containing(address: number, byteLength: number): R | undefined {
    const range = this.at(address);
    return range && address + byteLength <= range.address + range.byteLength ? range : undefined;
  }

  overlaps(address: number, byteLength: number): boolean {
    const range = this.#sorted[this.#index(address)];
    return range !== undefined && range.address < address + byteLength;
  }
}

/** A first-fit allocator: takes the lowest free range, so that freed ranges are reused. */
export class FirstFitAllocator {
  readonly #holes: { start: number; end: number }[] = [];

  /** Adds free space. */
  add(start: number, byteLength: number): void {
    const end = start + byteLength;
    const found = this.#holes.findIndex((hole) => hole.start > start);
    const at = found < 0 ? this.#holes.length : found;
    this.#holes.splice(at, 0, { start, end });
    this.#merge(at);
    this.#merge(at - 1);
  }

  /** Merges the hole at index `at` with the next one if they are adjacent. */
  #merge(at: number): void {
    const hole = this.#holes[at];
    const next = this.#holes[at + 1];
    if (!hole || !next || hole.end !== next.start) return;
    hole.end = next.end;
    this.#holes.splice(at + 1, 1);
  }

  /** @param alignment a multiple of the alignment of all ranges */
  take(byteLength: number, alignment = 1): number | undefined {
    const aligned = (start: number): number => Math.ceil(start / alignment) * alignment;
    const hole = this.#holes.find(({ start, end }) => end - aligned(start) >= byteLength);
    if (!hole) return undefined;
    const start = aligned(hole.start);
    this.takeAt(start, byteLength);
    return start;
  }

  /** Takes exactly this range. Returns false if it is not free. */
  takeAt(start: number, byteLength: number): boolean {
    const end = start + byteLength;
    const at = this.#holes.findIndex((hole) => hole.start <= start && end <= hole.end);
    const hole = this.#holes[at];
    if (!hole) return false;
    const rest = [
      { start: hole.start, end: start },
      { start: end, end: hole.end },
    ].filter((piece) => piece.start < piece.end);
    this.#holes.splice(at, 1, ...rest);
    return true;
  }
}
