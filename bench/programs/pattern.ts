/**
 * What is compared at the other end: a whole buffer of up to 64 MiB; of a larger one 64 of its MiB,
 * the first and the last among them.
 */
import type { DeviceBuffer } from 'cuffi';
import { BLOCK_BYTE_LENGTH, blockAt } from '../bytes.ts';

/** What the other process answers when all is as it was sent. */
export const COMPARED = 'compared';

const MOST_BLOCKS = 64;

/** Writes the pattern to where it is compared. */
export function writePatternTo(buffer: DeviceBuffer): void {
  for (const { at, part } of partsOf(buffer)) part.copyFromSync(blockAt(at, buffer.byteLength));
}

/** `COMPARED`, or where a buffer holds anything but the pattern. */
export function comparePatternIn(buffer: DeviceBuffer): string {
  const host = new Uint8Array(Math.min(buffer.byteLength, BLOCK_BYTE_LENGTH));
  for (const { at, part } of partsOf(buffer)) {
    const seen = host.subarray(0, part.byteLength);
    part.copyToHostSync(seen);
    if (Buffer.compare(seen, blockAt(at, buffer.byteLength)) !== 0)
      return `other bytes than were sent, after byte ${at}`;
  }
  return COMPARED;
}

function* partsOf(buffer: DeviceBuffer): Generator<{ at: number; part: DeviceBuffer }> {
  const { byteLength } = buffer;
  const last = Math.ceil(byteLength / BLOCK_BYTE_LENGTH) - 1;
  const count = Math.min(last + 1, MOST_BLOCKS);
  for (let n = 0; n < count; n += 1) {
    const at = Math.round((n * last) / Math.max(count - 1, 1)) * BLOCK_BYTE_LENGTH;
    yield { at, part: buffer.subarray(at, Math.min(at + BLOCK_BYTE_LENGTH, byteLength)) };
  }
}
