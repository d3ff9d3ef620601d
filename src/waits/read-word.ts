/** Below every value. */
export const INVALID = -1;
/** A hostile process may change a word all the time. */
export const MAX_READS = 1000;

/** From here on, a value is not a safe integer. */
const HIGH_LIMIT = 2 ** 21;
/** The halves of the largest value, which is beyond every other one for devices, too. */
const HIGH_OF_LARGEST = 2 ** 31 - 1;
const LOW_OF_LARGEST = 2 ** 32 - 1;

/**
 * Reads a 64-bit word that counts up and that another thread, process or device may write meanwhile. A
 * count is reached once the word is not below it. V8 reads 32-bit halves without allocating.
 *
 * @returns Infinity for the largest signed integer, {@link INVALID} for an invalid value
 */
export function readWord(halves: Uint32Array, index: number): number {
  for (let attempt = 0; attempt < MAX_READS; attempt += 1) {
    // One atomic read keeps the reads in order. Node 20 calls a function for each.
    const high = halves[2 * index + 1] as number;
    const low = Atomics.load(halves, 2 * index);
    if (halves[2 * index + 1] !== high) continue;
    if (high < HIGH_LIMIT) return high * 2 ** 32 + low;
    return high === HIGH_OF_LARGEST && low === LOW_OF_LARGEST ? Number.POSITIVE_INFINITY : INVALID;
  }
  return INVALID;
}
