/** The types of kernel parameters and their sizes. */

/** The size in bytes of each scalar type that a kernel may take. */
export const scalarByteLengths = {
  bool: 1,
  int8: 1,
  int16: 2,
  int32: 4,
  int64: 8,
  uint8: 1,
  uint16: 2,
  uint32: 4,
  uint64: 8,
  float16: 2,
  bfloat16: 2,
  float32: 4,
  float64: 8,
} as const;

/** The name of a scalar type that a kernel may take, e.g. `float32`. */
export type ScalarName = keyof typeof scalarByteLengths;

/** A struct that a kernel takes by value. */
export interface StructParameter {
  /** Its size in bytes, including padding as in C. */
  readonly bytes: number;
}
