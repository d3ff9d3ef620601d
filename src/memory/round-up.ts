/** The least multiple of `unit` that is not less than `value`. */
export const roundUp = (value: number, unit: number): number => Math.ceil(value / unit) * unit;
