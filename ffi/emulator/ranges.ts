/** Ranges of addresses: which one an address lies in, and where the next one fits. */

export interface Range {
  readonly address: number;
  readonly byteLength: number;
}

/** Disjoint ranges, found by any address inside them. */
export class RangeMap<R extends Range> implements Iterable<R> {
  readonly #sorted: R[] = [];

  get size(): number {
    return this.#sorted.length;
  }

  [Symbol.iterator](): Iterator<R> {
    return this.#sorted.values();
  }

  /** The index of the first range that ends behind `address`. */
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

  /** The range that `address` lies in. */
  at(address: number): R | undefined {
    const range = this.#sorted[this.#index(address)];
    return range && range.address <= address ? range : undefined;
  }

  /** The range that holds all `byteLength` bytes from `address` on. */
  containing(address: number, byteLength: number): R | undefined {
    const range = this.at(address);
    return range && address + byteLength <= range.address + range.byteLength ? range : undefined;
  }

  overlaps(address: number, byteLength: number): boolean {
    const range = this.#sorted[this.#index(address)];
    return range !== undefined && range.address < address + byteLength;
  }
}

/** Free space given out from its lowest address, so that what is freed is given out again. */
export class FirstFitAllocator {
  readonly #holes: { start: number; end: number }[] = [];

  /** Adds free space, or gives some back. */
  add(start: number, byteLength: number): void {
    const end = start + byteLength;
    const found = this.#holes.findIndex((hole) => hole.start > start);
    const at = found < 0 ? this.#holes.length : found;
    this.#holes.splice(at, 0, { start, end });
    this.#merge(at);
    this.#merge(at - 1);
  }

  /** Joins the hole at `at` with the next one where they touch. */
  #merge(at: number): void {
    const hole = this.#holes[at];
    const next = this.#holes[at + 1];
    if (!hole || !next || hole.end !== next.start) return;
    hole.end = next.end;
    this.#holes.splice(at + 1, 1);
  }

  /** `alignment` is a multiple of what all ranges here are aligned to. */
  take(byteLength: number, alignment = 1): number | undefined {
    const aligned = (start: number): number => Math.ceil(start / alignment) * alignment;
    const hole = this.#holes.find(({ start, end }) => end - aligned(start) >= byteLength);
    if (!hole) return undefined;
    const start = aligned(hole.start);
    this.takeAt(start, byteLength);
    return start;
  }

  /** Takes exactly this range; false where it is not all free. */
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
