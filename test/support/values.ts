import type { DeviceBuffer } from '../../src/index.ts';

/** The different bytes of a buffer, in the order in which they come. */
export const valuesOf = async (buffer: DeviceBuffer): Promise<number[]> => [
  ...new Set(await buffer.copyToHost()),
];
