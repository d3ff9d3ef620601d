/** Bytes that reveal whether they arrived, and where: each MiB begins with its own number. */
import type { DeviceBuffer } from 'cuffi';

const BLOCK = 1 << 20;
const block = new Uint8Array(BLOCK).map((_, at) => (at * 31 + (at >> 8)) & 255);

/** The bytes of the pattern from a block's first byte on. They are valid until the next call. */
function blockAt(offset: number, byteLength: number): Uint8Array {
  new DataView(block.buffer).setUint32(0, offset / BLOCK, true);
  return block.subarray(0, Math.min(BLOCK, byteLength - offset));
}

/** Fills host memory with the pattern. */
export function writePattern(bytes: Uint8Array): void {
  for (let at = 0; at < bytes.byteLength; at += BLOCK) bytes.set(blockAt(at, bytes.byteLength), at);
}

/** @throws Error if host memory holds anything but the pattern */
export function requirePattern(bytes: Uint8Array, what: string): void {
  for (let at = 0; at < bytes.byteLength; at += BLOCK) {
    const expected = blockAt(at, bytes.byteLength);
    if (Buffer.compare(expected, bytes.subarray(at, at + expected.byteLength)) !== 0)
      throw new Error(`${what}: wrong bytes after byte ${at}`);
  }
}

/** The receiver returns this if all compared bytes are right. */
export const COMPARED = 'compared';
/** A larger buffer is compared in so many of its MiB, the first and the last among them. */
const MOST_BLOCKS = 64;

/** Writes the pattern to the parts of device memory that are compared. */
export function writePatternTo(buffer: DeviceBuffer): void {
  for (const { at, part } of partsOf(buffer)) part.copyFromSync(blockAt(at, buffer.byteLength));
}

/** Returns `COMPARED`, or where device memory holds anything but the pattern. */
function comparePatternIn(buffer: DeviceBuffer): string {
  const host = new Uint8Array(Math.min(buffer.byteLength, BLOCK));
  for (const { at, part } of partsOf(buffer)) {
    const seen = host.subarray(0, part.byteLength);
    part.copyToHostSync(seen);
    if (Buffer.compare(seen, blockAt(at, buffer.byteLength)) !== 0)
      return `wrong bytes after byte ${at}`;
  }
  return COMPARED;
}

function* partsOf(buffer: DeviceBuffer): Generator<{ at: number; part: DeviceBuffer }> {
  const { byteLength } = buffer;
  const last = Math.ceil(byteLength / BLOCK) - 1;
  const count = Math.min(last + 1, MOST_BLOCKS);
  for (let n = 0; n < count; n += 1) {
    const at = Math.round((n * last) / Math.max(count - 1, 1)) * BLOCK;
    yield { at, part: buffer.subarray(at, Math.min(at + BLOCK, byteLength)) };
  }
}

/** Reads what a receiver was given: its first word, or once, if asked, all of it. */
export class Reader {
  readonly #word = new Uint32Array(1);
  #comparesNext = false;

  compareNext(): void {
    this.#comparesNext = true;
  }

  read(buffer: DeviceBuffer): number | string {
    if (this.#comparesNext) {
      this.#comparesNext = false;
      return comparePatternIn(buffer);
    }
    buffer.copyToHostSync(this.#word);
    return this.#word[0] as number;
  }
}
