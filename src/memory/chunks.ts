/**
 * Ranges of device memory cut where one call of the driver may not go on: it refuses copies over
 * the border of two mappings, even where their addresses follow each other (seen on an H200).
 */

/** The borders (addresses) that lie within a range, as offsets from its beginning, in order. */
export const splitOffsetsWithin = (
  boundaries: readonly number[],
  address: number,
  byteLength: number,
): number[] =>
  boundaries
    .map((border) => border - address)
    .filter((offset) => offset > 0 && offset < byteLength)
    .sort((a, b) => a - b);

/** A range in pieces: cut at each of `cuts`, and none longer than `most`. */
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

/** The least multiple of `unit` that is not less than `value`. */
export const roundUp = (value: number, unit: number): number => Math.ceil(value / unit) * unit;
