/** Sizes in words, and bytes that tell when they arrive in another place or not at all. */

/** A size as `64 KiB`. */
export const sizeName = (byteLength: number): string => {
  const unit = ['bytes', 'KiB', 'MiB', 'GiB'];
  const power = Math.floor(Math.log2(byteLength) / 10);
  return `${byteLength / 1024 ** power} ${unit[power]}`;
};

export const BLOCK_BYTE_LENGTH = 1 << 20;
const block = new Uint8Array(BLOCK_BYTE_LENGTH).map((_, at) => (at * 31 + (at >> 8)) & 255);

/**
 * The bytes of the pattern from the beginning of a block on, until the next call; each block begins
 * with its own number.
 */
export function blockAt(offset: number, byteLength: number): Uint8Array {
  new DataView(block.buffer).setUint32(0, offset / BLOCK_BYTE_LENGTH, true);
  return block.subarray(0, Math.min(BLOCK_BYTE_LENGTH, byteLength - offset));
}

/** Fills memory with the pattern. */
export function writePattern(bytes: Uint8Array): void {
  for (let at = 0; at < bytes.byteLength; at += BLOCK_BYTE_LENGTH)
    bytes.set(blockAt(at, bytes.byteLength), at);
}

/** @throws Error where memory holds anything but the pattern */
export function requirePattern(bytes: Uint8Array, what: string): void {
  for (let at = 0; at < bytes.byteLength; at += BLOCK_BYTE_LENGTH) {
    const expected = blockAt(at, bytes.byteLength);
    if (Buffer.compare(expected, bytes.subarray(at, at + expected.byteLength)) !== 0)
      throw new Error(`${what}: other bytes than were sent, after byte ${at}`);
  }
}
