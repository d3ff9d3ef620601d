/** How a value looks on its way: each part begins with one of these bytes. */

export const Tag = {
  undefined: 0,
  null: 1,
  false: 2,
  true: 3,
  /** 4 bytes. All numbers are little-endian. */
  int32: 4,
  /** 8 bytes. */
  float64: 5,
  /** Length, then a byte a character. */
  latin1: 6,
  /** Length in bytes, then two bytes a unit: every string is sound, lone surrogates included. */
  utf16: 7,
  /** 8 bytes, signed. */
  bigint64: 8,
  /** Sign (0 or 1), length, then hexadecimal digits. */
  bigint: 9,
  /** Count, then the items. */
  array: 10,
  /** Count, then keys (a string each) and values in turn. */
  object: 11,
  /** Its place in {@link binaryTypes}, length in bytes, then the bytes. */
  binary: 12,
  /** How many file descriptors, then the length in bytes of the object's descriptor, then that. */
  gpuObject: 13,
} as const;

type BinaryType = new (buffer: ArrayBuffer) => ArrayBufferView;

/** The kinds of binary data; undefined is the ArrayBuffer itself. Only ever appended to. */
export const binaryTypes: readonly (readonly [name: string, type: BinaryType | undefined])[] = [
  ['ArrayBuffer', undefined],
  ['DataView', DataView],
  ['Uint8Array', Uint8Array],
  ['Int8Array', Int8Array],
  ['Uint8ClampedArray', Uint8ClampedArray],
  ['Uint16Array', Uint16Array],
  ['Int16Array', Int16Array],
  ['Uint32Array', Uint32Array],
  ['Int32Array', Int32Array],
  ['Float32Array', Float32Array],
  ['Float64Array', Float64Array],
  ['BigUint64Array', BigUint64Array],
  ['BigInt64Array', BigInt64Array],
];
