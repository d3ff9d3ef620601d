/** The least multiple of `unit` that is not less than `byteLength`. */
export const roundUp = (byteLength: number, unit: number): number =>
  Math.ceil(byteLength / unit) * unit;
