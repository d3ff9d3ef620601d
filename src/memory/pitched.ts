/** Memory seen as rows and slices: what of it a copy or a fill touches, checked and cut. */
import {
  checkHostMemory,
  checkInteger,
  checkOptions,
  formatValue,
  type HostMemory,
} from '../validate.ts';
import { DeviceBuffer } from './buffer.ts';
import { chunks, splitOffsetsWithin } from './chunks.ts';

/** Rows of bytes in memory, and slices of rows; the first begins at `byteOffset`. */
export interface PitchedMemory {
  readonly memory: DeviceBuffer | HostMemory;
  /** Where the first row begins. Default 0. */
  readonly byteOffset?: number;
  /** Bytes from the beginning of a row to that of the next. Default: the width. */
  readonly rowPitch?: number;
  /**
   * Bytes from the beginning of a slice to that of the next, a multiple of `rowPitch`. Default: the
   * rows of a slice, one after the other.
   */
  readonly slicePitch?: number;
}

/** How much of two or three dimensions is copied or set. 0 of any is nothing at all. */
export interface Extent {
  /** Bytes in a row. */
  readonly width: number;
  /** Rows in a slice. Default 1. */
  readonly height?: number;
  /** Default 1. */
  readonly depth?: number;
}

/** An {@link Extent} without gaps. */
export type Box = Required<Extent>;

/** One side's rows: they lie within its memory. */
export interface Region<M extends DeviceBuffer | Uint8Array = DeviceBuffer | Uint8Array> {
  readonly memory: M;
  readonly byteOffset: number;
  /** From the first byte to behind the last, gaps included. */
  readonly byteLength: number;
  readonly rowPitch: number;
  readonly slicePitch: number;
  /** Where one call of the driver must not go on, as offsets from `byteOffset`. */
  readonly splitOffsets: readonly number[];
}

/** A part of a box: its own extent, and where it begins in each region. */
export interface BoxPart {
  readonly box: Box;
  readonly offsets: readonly number[];
}

/** The driver refuses larger pitches, and with them longer rows. */
const MAX_PITCH = 2 ** 31 - 1;
const MAX_ROW_BYTE_LENGTH = 2 ** 30;

export const isEmpty = ({ width, height, depth }: Box): boolean =>
  width === 0 || height === 0 || depth === 0;

/** @throws TypeError, RangeError */
export function checkExtent(extent: Extent, call: string): Box {
  const { width, height, depth } = checkOptions(
    extent,
    ['width', 'height', 'depth'],
    `${call} extent`,
  );
  return {
    width: checkInteger(width, 'width'),
    height: height === undefined ? 1 : checkInteger(height, 'height'),
    depth: depth === undefined ? 1 : checkInteger(depth, 'depth'),
  };
}

/** @throws TypeError, ClosedError, RangeError where a byte of the box lies beyond the memory */
export function checkRegion(pitched: PitchedMemory, name: string, box: Box, call: string): Region {
  if (pitched instanceof DeviceBuffer || ArrayBuffer.isView(pitched))
    throw new TypeError(
      `${call}: ${name} must be { memory } with it as memory, not ${formatValue(pitched)} itself`,
    );
  const given = checkOptions(
    pitched,
    ['memory', 'byteOffset', 'rowPitch', 'slicePitch'],
    `${call} ${name}`,
  );
  const memory =
    given.memory instanceof DeviceBuffer
      ? given.memory
      : checkHostMemory(given.memory, `${name}.memory`);
  const { width, height, depth } = box;
  const rowPitch = given.rowPitch ?? width;
  checkInteger(rowPitch, `${name}.rowPitch`, width);
  const slicePitch = given.slicePitch ?? rowPitch * height;
  if (given.slicePitch !== undefined) {
    checkInteger(slicePitch, `${name}.slicePitch`, rowPitch * height);
    if (slicePitch % rowPitch > 0)
      throw new RangeError(
        `${name}.slicePitch is ${slicePitch}, no multiple of the ${rowPitch} bytes from row to row`,
      );
  }
  const byteOffset = given.byteOffset ?? 0;
  checkInteger(byteOffset, `${name}.byteOffset`);
  // Where the products are not exact they are above 2^53, and so beyond any memory.
  const byteLength = isEmpty(box) ? 0 : (depth - 1) * slicePitch + (height - 1) * rowPitch + width;
  if (byteOffset + byteLength > memory.byteLength)
    throw new RangeError(
      `${height * depth} rows of ${width} bytes, ${rowPitch} from row to row and ${slicePitch} from slice to slice, ` +
        `reach byte ${byteOffset + byteLength}: ${name}.memory has ${memory.byteLength}`,
    );
  // A closed buffer, and one that is only for reading, are refused now.
  if (memory instanceof DeviceBuffer) name === 'target' ? memory.writableAddress : memory.address;
  const splitOffsets =
    memory instanceof DeviceBuffer
      ? splitOffsetsWithin(memory.splitOffsets, byteOffset, byteLength)
      : [];
  return { memory, byteOffset, byteLength, rowPitch, slicePitch, splitOffsets };
}

/** The same box with fewer dimensions, where the rows or slices of all regions leave no gaps. */
export function flatten({ width, height, depth }: Box, regions: readonly Region[]): Box {
  const isGapless = regions.every((region) => region.slicePitch === region.rowPitch * height);
  if (depth > 1 && !isGapless) return { width, height, depth };
  const rows = height * depth;
  if (rows > 1 && regions.some((region) => region.rowPitch !== width))
    return { width, height: rows, depth: 1 };
  return { width: width * rows, height: 1, depth: 1 };
}

/**
 * A box in parts that one call each can do: none goes over a cut of a region, nor has more bytes
 * than `most`.
 */
export function* splitBox(
  box: Box,
  regions: readonly Region[],
  maxByteLength = Infinity,
): Generator<BoxPart> {
  const { width, height, depth } = box;
  const isFlat = height === 1 && depth === 1;
  const isSimple =
    width <= MAX_ROW_BYTE_LENGTH &&
    regions.every(
      ({ splitOffsets, rowPitch }) =>
        splitOffsets.length === 0 && (isFlat || rowPitch <= MAX_PITCH),
    );
  if (isSimple && width * height * depth <= maxByteLength) {
    yield { box, offsets: regions.map(() => 0) };
    return;
  }
  for (let z = 0; z < depth; z += 1) {
    for (let y = 0, rows = 1; y < height; y += rows) {
      const offsets = regions.map(({ rowPitch, slicePitch }) => z * slicePitch + y * rowPitch);
      const rowCount = Math.min(
        height - y,
        width > MAX_ROW_BYTE_LENGTH ? 0 : Math.floor(maxByteLength / width),
        ...regions.map((region, at) => rowsBeforeSplit(region, offsets[at] as number, width)),
      );
      rows = Math.max(1, rowCount);
      if (rowCount > 0) yield { box: { width, height: rowCount, depth: 1 }, offsets };
      else yield* splitRow(width, regions, offsets, maxByteLength);
    }
  }
}

/** How many rows, from the one at `offset` on, one call can do. */
function rowsBeforeSplit(
  { splitOffsets, rowPitch }: Region,
  offset: number,
  width: number,
): number {
  const cut = splitOffsets.find((at) => at > offset) ?? Infinity;
  if (cut - offset < width) return 0;
  return rowPitch > MAX_PITCH ? 1 : Math.floor((cut - offset - width) / rowPitch) + 1;
}

function* splitRow(
  width: number,
  regions: readonly Region[],
  offsets: readonly number[],
  maxByteLength: number,
): Generator<BoxPart> {
  const splitOffsets = regions.flatMap((region, at) =>
    splitOffsetsWithin(region.splitOffsets, offsets[at] as number, width),
  );
  const inOrder = [...new Set(splitOffsets)].sort((a, b) => a - b);
  for (const [begin, byteLength] of chunks(
    width,
    inOrder,
    Math.min(maxByteLength, MAX_ROW_BYTE_LENGTH),
  ))
    yield {
      box: { width: byteLength, height: 1, depth: 1 },
      offsets: offsets.map((offset) => offset + begin),
    };
}
