/**
 * Refuses keys that make a Map or Set slow: V8 hashes numbers and bigints without a seed, and long
 * strings by their length, so another process can choose thousands of keys for one bucket. Adding
 * each of them walks past all others.
 */
import { MAX_COLLISIONS, MAX_COLLISIONS_PER_KEY, MAX_NAME_LENGTH } from '../protocol.ts';

/** Counts the keys that V8 compares while a Map or Set is filled. */
export class HashCollisions {
  /** The hashes of the keys that another process can choose. */
  readonly #hashes: number[] = [];
  /** How many of those keys each bucket has. V8 doubles the buckets when each has two entries. */
  #buckets = new Uint32Array(2);
  #size = 0;
  #collisions = 0;

  /** Adds the next key or member. Returns false if the keys so far collide too often. */
  add(key: unknown): boolean {
    if (this.#size === 2 * this.#buckets.length) this.#grow();
    this.#size += 1;
    const hash = foreseeableHash(key);
    if (hash === undefined) return true;
    this.#hashes.push(hash);
    this.#collisions += this.#count(hash);
    return this.#collisions <= MAX_COLLISIONS + MAX_COLLISIONS_PER_KEY * this.#size;
  }

  /** Returns how many keys the bucket had. */
  #count(hash: number): number {
    const bucket = hash & (this.#buckets.length - 1);
    const count = this.#buckets[bucket] as number;
    this.#buckets[bucket] = count + 1;
    return count;
  }

  #grow(): void {
    this.#buckets = new Uint32Array(2 * this.#buckets.length);
    for (const hash of this.#hashes) this.#count(hash);
  }
}

// ---- The hashes of V8 ----

const scratch = new ArrayBuffer(8);
const float64 = new Float64Array(scratch);
const bigUint64 = new BigUint64Array(scratch);
const words = new Uint32Array(scratch);

/** Returns V8's hash if it has no seed. All bits matter: V8 uses more of them in a larger table. */
function foreseeableHash(key: unknown): number | undefined {
  if (typeof key === 'number') {
    if ((key | 0) === key) return hashOfInt32(key);
    float64[0] = key;
    return hashOfWords();
  }
  if (typeof key === 'bigint') {
    // V8 ignores the sign, and all but the lowest 64 bits.
    bigUint64[0] = key < 0n ? -key : key;
    return hashOfWords();
  }
  // V8 hashes a longer string by its length.
  return typeof key === 'string' && key.length > MAX_NAME_LENGTH ? key.length : undefined;
}

/** As `ComputeUnseededHash` of V8. */
function hashOfInt32(key: number): number {
  let hash = (~key + (key << 15)) | 0;
  hash ^= hash >>> 12;
  hash = (hash + (hash << 2)) | 0;
  hash ^= hash >>> 4;
  hash = Math.imul(hash, 2057);
  return (hash ^ (hash >>> 16)) & HASH_BITS;
}

/** As `ComputeLongHash` of V8, of the 64 bits in `words`. */
function hashOfWords(): number {
  const [low, high] = words as unknown as [number, number];
  // hash = ~hash + (hash << 18)
  let l = (~low >>> 0) + ((low << 18) >>> 0);
  let h = (~high + ((high << 18) | (low >>> 14)) + (l > MAX_UINT32 ? 1 : 0)) >>> 0;
  l >>>= 0;
  // hash ^= hash >> 31
  l = (l ^ ((h << 1) | (l >>> 31))) >>> 0;
  h = (h ^ (h >>> 31)) >>> 0;
  // hash *= 21
  const product = l * 21;
  h = (Math.imul(h, 21) + Math.floor(product / 2 ** 32)) >>> 0;
  l = product >>> 0;
  // hash ^= hash >> 11
  l = (l ^ ((l >>> 11) | (h << 21))) >>> 0;
  h ^= h >>> 11;
  // hash += hash << 6
  const sum = l + ((l << 6) >>> 0);
  h = h + ((h << 6) | (l >>> 26)) + (sum > MAX_UINT32 ? 1 : 0);
  // hash ^= hash >> 22
  return (sum ^ ((sum >>> 22) | (h << 10))) & HASH_BITS;
}

const HASH_BITS = 0x3fff_ffff;
const MAX_UINT32 = 0xffff_ffff;
