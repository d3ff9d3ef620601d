/**
 * Splits ranges of device memory for driver calls. The driver refuses copies across the boundary of
 * two mappings, even if their addresses are contiguous (seen on an H200).
 */

/** The boundaries (addresses) inside a range, as ascending offsets from its start. */
export const splitOffsetsWithin = (
  boundaries: readonly number[],
  address: number,
  byteLength: number,
): number[] =>
  boundaries
    .map((border) => border - address)
    .filter((offset) => offset > 0 && offset < byteLength)
    .sort((a, b) => a - b);

/** Splits a range at each of `splitOffsets`, into chunks of at most `maxByteLength` bytes. */
export function* chunks(
  byteLength: number,
  splitOffsets: readonly number[],
  maxByteLength: number = byteLength,
): Generator<readonly [offset: number, byteLength: number]> {
  let offset = 0;
  for (const end of [...splitOffsets, byteLength]) {
    for (; offset < end; offset = Math.min(offset + maxByteLength, end))
      yield [offset, Math.min(maxByteLength, end - offset)];
  }
}

/** Rounds `value` up to a multiple of `unit`. */
export const roundUp = (value: number, unit: number): number => Math.ceil(value / unit) * unit;
