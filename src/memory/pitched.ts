/**
 * Memory as rows and slices: checks the region of a copy or fill, and splits it for driver calls.
 */
import {
  checkHostMemory,
  checkInteger,
  checkOptions,
  formatValue,
  type HostMemory,
} from '../validate.ts';
import { DeviceBuffer } from './buffer.ts';
import { chunks, splitOffsetsWithin } from './chunks.ts';

/** Rows of bytes in memory, and slices of rows. The first row starts at `byteOffset`. */
export interface PitchedMemory {
  readonly memory: DeviceBuffer | HostMemory;
  /** Where the first row starts. Default 0. */
  readonly byteOffset?: number;
  /** Bytes from the start of a row to the start of the next. Default: the width. */
  readonly rowPitch?: number;
  /**
   * Bytes from the start of a slice to the start of the next; a multiple of `rowPitch`. Default:
   * the rows of a slice without a gap.
   */
  readonly slicePitch?: number;
}

/**
 * The size of a copy or fill in two or three dimensions. If any is 0, nothing is copied or set.
 */
export interface Extent {
  /** Bytes in a row. */
  readonly width: number;
  /** Rows in a slice. Default 1. */
  readonly height?: number;
  /** Default 1. */
  readonly depth?: number;
}

/** An {@link Extent} with all defaults filled in. */
export type Box = Required<Extent>;

/** The checked rows of one operand, inside its memory. */
export interface Region<M extends DeviceBuffer | Uint8Array = DeviceBuffer | Uint8Array> {
  readonly memory: M;
  readonly byteOffset: number;
  /** From the first byte to the last, including gaps. */
  readonly byteLength: number;
  readonly rowPitch: number;
  readonly slicePitch: number;
  /** The offsets from `byteOffset` at which driver calls must be split. */
  readonly splitOffsets: readonly number[];
}

/** A part of a box: its extent, and its offset in each region. */
export interface BoxPart {
  readonly box: Box;
  readonly offsets: readonly number[];
}

/**
 * The driver's CU_DEVICE_ATTRIBUTE_MAX_PITCH, on every GPU so far. It refuses larger pitches, and therefore
 * longer rows.
 */
export const MAX_PITCH: number = 2 ** 31 - 1;
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

/** @throws TypeError, ClosedError, RangeError if the box does not fit in the memory */
export function checkRegion(pitched: PitchedMemory, name: string, box: Box, call: string): Region {
  if (pitched instanceof DeviceBuffer || ArrayBuffer.isView(pitched))
    throw new TypeError(
      `${call}: ${name} must be { memory: … }, not ${formatValue(pitched)} itself`,
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
        `${name}.slicePitch is ${slicePitch}, not a multiple of the ${rowPitch} bytes from row to row`,
      );
  }
  const byteOffset = given.byteOffset ?? 0;
  checkInteger(byteOffset, `${name}.byteOffset`);
  // Products that are inexact exceed 2^53, and therefore any memory.
  const byteLength = isEmpty(box) ? 0 : (depth - 1) * slicePitch + (height - 1) * rowPitch + width;
  if (byteOffset + byteLength > memory.byteLength)
    throw new RangeError(
      `${height * depth} rows of ${width} bytes, ${rowPitch} from row to row and ${slicePitch} from slice to slice, ` +
        `reach byte ${byteOffset + byteLength}: ${name}.memory has ${memory.byteLength}`,
    );
  // Throws now if the buffer is closed or read-only.
  if (memory instanceof DeviceBuffer)
    name === 'target' ? memory.writableAddress : memory.readableAddress;
  const splitOffsets =
    memory instanceof DeviceBuffer
      ? splitOffsetsWithin(memory.splitOffsets, byteOffset, byteLength)
      : [];
  return { memory, byteOffset, byteLength, rowPitch, slicePitch, splitOffsets };
}

/** The same box with fewer dimensions, if the rows or slices of all regions are contiguous. */
export function flatten({ width, height, depth }: Box, regions: readonly Region[]): Box {
  const isGapless = regions.every((region) => region.slicePitch === region.rowPitch * height);
  if (depth > 1 && !isGapless) return { width, height, depth };
  const rows = height * depth;
  if (rows > 1 && regions.some((region) => region.rowPitch !== width))
    return { width, height: rows, depth: 1 };
  return { width: width * rows, height: 1, depth: 1 };
}

/**
 * Splits a box into parts for one driver call each. No part crosses a split offset of a region or
 * has more than `maxByteLength` bytes.
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

/** How many rows, starting with the row at `offset`, one driver call can process. */
function rowsBeforeSplit(
  { splitOffsets, rowPitch }: Region,
  offset: number,
  width: number,
): number {
  const split = splitOffsets.find((at) => at > offset) ?? Infinity;
  if (split - offset < width) return 0;
  return rowPitch > MAX_PITCH ? 1 : Math.floor((split - offset - width) / rowPitch) + 1;
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
