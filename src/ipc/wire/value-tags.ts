/** The encoding of values: each part begins with one of these bytes. */

export const Tag = {
  undefined: 0,
  null: 1,
  false: 2,
  true: 3,
  /** 4 bytes. All numbers are little-endian. */
  int32: 4,
  /** 8 bytes. */
  float64: 5,
  /** Length, then one byte per character. */
  latin1: 6,
  /**
   * Length in bytes, then two bytes per code unit. Every string is valid, even with lone
   * surrogates.
   */
  utf16: 7,
  /** 8 bytes, signed. */
  bigint64: 8,
  /** Sign (0 or 1), length, then hexadecimal digits. */
  bigint: 9,
  /** Count, then the items. */
  array: 10,
  /** Count, then keys (each a string) and values in turn. */
  object: 11,
  /** Index in {@link binaryTypes}, length in bytes, then the bytes. */
  binary: 12,
  /** The place of a GPU object. The table of objects follows the value. */
  gpuObject: 13,
  /** An index of an array that has no item. */
  hole: 14,
  /** 8 bytes: the time in milliseconds. NaN for an invalid date. */
  date: 15,
  /** Count, then keys (any values) and values in turn. */
  map: 16,
  /** Count, then the members. */
  set: 17,
  /**
   * Index in {@link errorTypes}, bits of {@link ErrorField}, then those strings; for an
   * AggregateError a count and its errors; then the cause, if it has one.
   */
  error: 18,
} as const;

type BinaryType = new (buffer: ArrayBuffer) => ArrayBufferView;

/**
 * The kinds of binary data. Undefined is the ArrayBuffer itself. Append only: the indices travel.
 */
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

/** What an encoded error has, in this order; all but the cause are strings. */
export const ErrorField = { name: 1, message: 2, stack: 4, code: 8, cause: 16 } as const;

/** The classes that an error arrives as. Append only: the indices travel. */
export const errorTypes: readonly ErrorConstructor[] = [
  Error,
  TypeError,
  RangeError,
  SyntaxError,
  ReferenceError,
  EvalError,
  URIError,
  // Made without arguments, as the others are.
  AggregateError as unknown as ErrorConstructor,
];
export const AGGREGATE_ERROR = 7;
