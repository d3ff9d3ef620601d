/** The values that the round trip writes and checks: all different, and different on each side. */

/** The process that wrote a value. */
export type Side = 'parent' | 'child';

const valueAt = (side: Side, index: number): number => {
  const value = (Math.imul(index, 0x9e37_79b1) + 1) >>> 0;
  return side === 'parent' ? value : ~value >>> 0;
};

/** All values of one side. */
export const pattern = (side: Side, elements: number): Uint32Array =>
  new Uint32Array(elements).map((_, index) => valueAt(side, index));

/** How many values differ from those that `side` writes. */
export const countMismatches = (side: Side, values: Uint32Array): number =>
  values.reduce((count, value, index) => count + Number(value !== valueAt(side, index)), 0);
