/** The shared pages of a pool, behind its memory: its exports and importers. */
import { randomBytes } from 'node:crypto';
import { viewMemory } from '../native.ts';
import type { Address } from '../types.ts';
import { isAlive, type ProcessIdentity } from './processes.ts';

const MAGIC = 0x6375_706c;

// Offsets in words of four bytes: the header, the slots of importers, the exported allocations.
const GENERATION = 2;
const DEVICE = 4;
const IMPORTERS = 16;
const IMPORTER_WORDS = 4;
const IMPORTER_COUNT = 1020;
const EXPORTS = IMPORTERS + IMPORTER_COUNT * IMPORTER_WORDS;
const EXPORT_WORDS = 8;
const EXPORT_COUNT = 4096;

export const POOL_PAGE_BYTE_LENGTH: number = (EXPORTS + EXPORT_COUNT * EXPORT_WORDS) * 4;

// A slot that is taken, and whose process is not written yet.
const RESERVED_SLOT = -1;

/** An allocation that other processes can import. */
export interface SharedAllocation {
  readonly slot: number;
  readonly id: number;
  readonly offset: number;
  readonly byteLength: number;
}

/**
 * Records which pool this is, which of its allocations are exported, and which processes have
 * imported them.
 *
 * An importer takes a slot whether or not the allocation is live. When the owner frees an imported
 * allocation, it retains the memory. Memory freed before may be reused by then, as on hardware.
 */
export class PoolPage {
  readonly #words: Int32Array;

  constructor(address: number) {
    this.#words = new Int32Array(viewMemory(address as Address, POOL_PAGE_BYTE_LENGTH));
  }

  /** Initialises the pages of a new pool, of a device by its number in the machine. */
  initialise(device: number): void {
    this.#words[0] = MAGIC;
    this.#words[DEVICE] = device;
    new Uint8Array(this.#words.buffer, GENERATION * 4, 8).set(randomBytes(8));
  }

  get isValid(): boolean {
    return this.#words[0] === MAGIC;
  }

  /** The number in the machine of the pool's device. */
  get device(): number {
    return this.#words[DEVICE] as number;
  }

  get generation(): string {
    return Buffer.from(this.#words.buffer, GENERATION * 4, 8).toString('hex');
  }

  /** Exports an allocation. Undefined if all slots are taken. */
  share(id: number, offset: number, byteLength: number): SharedAllocation | undefined {
    for (let slot = 0; slot < EXPORT_COUNT; slot += 1) {
      if (Atomics.load(this.#words, this.#exportIndex(slot)) !== 0 || this.hasImporters(slot))
        continue;
      const shared = { slot, id, offset, byteLength };
      this.#sizes(slot).forEach((_, at, sizes) => {
        sizes[at] = BigInt(at === 0 ? offset : byteLength);
      });
      Atomics.store(this.#words, this.#exportIndex(slot), id);
      return shared;
    }
    return undefined;
  }

  unshare(slot: number): void {
    Atomics.store(this.#words, this.#exportIndex(slot), 0);
  }

  /** Records that a process has an allocation mapped. Undefined if all slots are taken. */
  addImporter(slot: number, { pid, startTime }: ProcessIdentity): number | undefined {
    for (let importer = 0; importer < IMPORTER_COUNT; importer += 1) {
      const at = IMPORTERS + importer * IMPORTER_WORDS;
      if (Atomics.compareExchange(this.#words, at, 0, RESERVED_SLOT) !== 0) continue;
      Atomics.store(this.#words, at + 1, pid);
      Atomics.store(this.#words, at + 2, startTime | 0);
      Atomics.store(this.#words, at + 3, Math.floor(startTime / 2 ** 32));
      Atomics.store(this.#words, at, slot + 1);
      return importer;
    }
    return undefined;
  }

  removeImporter(importer: number): void {
    Atomics.store(this.#words, IMPORTERS + importer * IMPORTER_WORDS, 0);
  }

  /** Whether a living process has an allocation mapped. Removes processes that have ended. */
  hasImporters(slot: number): boolean {
    let found = false;
    for (let importer = 0; importer < IMPORTER_COUNT; importer += 1) {
      const at = IMPORTERS + importer * IMPORTER_WORDS;
      if (Atomics.load(this.#words, at) !== slot + 1) continue;
      const pid = Atomics.load(this.#words, at + 1);
      const low = Atomics.load(this.#words, at + 2) >>> 0;
      const startTime = low + Atomics.load(this.#words, at + 3) * 2 ** 32;
      if (isAlive({ pid, startTime })) found = true;
      else Atomics.compareExchange(this.#words, at, slot + 1, 0);
    }
    return found;
  }

  #exportIndex(slot: number): number {
    return EXPORTS + slot * EXPORT_WORDS;
  }

  #sizes(slot: number): BigUint64Array {
    return new BigUint64Array(this.#words.buffer, (this.#exportIndex(slot) + 2) * 4, 2);
  }
}
