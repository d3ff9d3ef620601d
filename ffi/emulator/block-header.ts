/**
 * The header of a memory block: pages that its owner and its importers share. They lie behind its
 * bytes.
 */
import { randomBytes } from 'node:crypto';
import { viewMemory } from '../native.ts';
import type { Address } from '../types.ts';
import { isAlive } from './processes.ts';

const MAGIC = 0x6375_6666;

// Offsets in words of four bytes: the fields, the slots of importers, the ids of live allocations.
const GENERATION = 2;
const SLOTS = 16;
const SLOT_WORDS = 4;
const SLOT_COUNT = 252;
const IDS = 1024;
const ID_COUNT = 4096;

export const BLOCK_HEADER_BYTE_LENGTH: number = (IDS + ID_COUNT) * 4;
/** The granularity of small allocations. The header has an id for each such unit of the block. */
export const ALLOCATION_UNIT = 512;

// A slot that is taken, and whose start time is not written yet.
const RESERVED_SLOT = -1;

/** How long mappings of a process persist after its end, and when each end was first seen. */
let teardownMs = 0;
const exitSeenAt = new Map<string, number>();

/** @param ms how long mappings of a process persist after its end */
export function delayTeardown(ms: number): void {
  teardownMs = ms;
}

/** Whether the mappings of a process that has ended still count. */
function isBeingTornDown(pid: number, startTime: number): boolean {
  if (teardownMs === 0) return false;
  const key = `${pid} ${startTime}`;
  const seen = exitSeenAt.get(key) ?? performance.now();
  exitSeenAt.set(key, seen);
  return performance.now() - seen < teardownMs;
}

/**
 * Records which memory this is, which allocations are live, and which processes have it mapped.
 *
 * An importer takes its slot before it reads the ids. An owner clears an id before it reads the
 * slots. So one of the two always sees the other.
 */
export class BlockHeader {
  readonly #words: Int32Array;

  constructor(address: number) {
    this.#words = new Int32Array(viewMemory(address as Address, BLOCK_HEADER_BYTE_LENGTH));
  }

  /** Initialises the header of a new block. */
  initialise(): void {
    this.#words[0] = MAGIC;
    new Uint8Array(this.#words.buffer, this.#words.byteOffset + GENERATION * 4, 8).set(
      randomBytes(8),
    );
  }

  get isValid(): boolean {
    return this.#words[0] === MAGIC;
  }

  /** A random id: other memory under the same descriptor number has another one. */
  get generation(): string {
    const at = this.#words.byteOffset + GENERATION * 4;
    return Buffer.from(this.#words.buffer, at, 8).toString('hex');
  }

  idAt(byteOffset: number): number {
    return Atomics.load(this.#words, IDS + this.#unit(byteOffset));
  }

  setIdAt(byteOffset: number, id: number): void {
    Atomics.store(this.#words, IDS + this.#unit(byteOffset), id);
  }

  /** Takes a slot for a process that maps the block. Undefined if all are taken. */
  addImporter(pid: number, startTime: number): number | undefined {
    for (let slot = 0; slot < SLOT_COUNT; slot += 1) {
      const at = SLOTS + slot * SLOT_WORDS;
      if (Atomics.compareExchange(this.#words, at, 0, RESERVED_SLOT) !== 0) continue;
      Atomics.store(this.#words, at + 1, startTime | 0);
      Atomics.store(this.#words, at + 2, Math.floor(startTime / 2 ** 32));
      Atomics.store(this.#words, at, pid);
      return slot;
    }
    return undefined;
  }

  removeImporter(slot: number): void {
    Atomics.store(this.#words, SLOTS + slot * SLOT_WORDS, 0);
  }

  /** Whether a living process has the block mapped. Removes processes that have ended. */
  hasImporters(): boolean {
    let found = false;
    for (let slot = 0; slot < SLOT_COUNT; slot += 1) {
      const at = SLOTS + slot * SLOT_WORDS;
      const pid = Atomics.load(this.#words, at);
      // A process that is still taking a slot reads the ids only then.
      if (pid <= 0) continue;
      const low = Atomics.load(this.#words, at + 1) >>> 0;
      const startTime = low + Atomics.load(this.#words, at + 2) * 2 ** 32;
      if (isAlive({ pid, startTime }) || isBeingTornDown(pid, startTime)) found = true;
      else Atomics.compareExchange(this.#words, at, pid, 0);
    }
    return found;
  }

  #unit(byteOffset: number): number {
    return Math.floor(byteOffset / ALLOCATION_UNIT);
  }
}
