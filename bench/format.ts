/** Numbers as people read them. */

/** Nanoseconds with a unit. */
export function duration(ns: number): string {
  if (ns < 0) return `-${duration(-ns)}`;
  if (ns < 1e4) return `${ns.toFixed(ns < 100 ? 1 : 0)} ns`;
  if (ns < 1e7) return `${(ns / 1e3).toFixed(1)} us`;
  if (ns < 1e10) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(1)} s`;
}

/** A ratio. */
export const multiple = (ratio: number): string =>
  ratio < 100 ? ratio.toPrecision(3) : ratio.toFixed(0);

/** GB/s, where 1 GB is 1e9 bytes. */
export const speed = (byteLength: number, ns: number): string => {
  const gigabytes = byteLength / ns;
  return gigabytes < 1000 ? gigabytes.toPrecision(3) : gigabytes.toFixed(0);
};

/** A fraction as per cent, rounded down: a value below a limit never reads as the limit. */
export const percent = (part: number): string =>
  `${(Math.floor(part * 1000 + 1e-9) / 10).toFixed(1)} %`;

/** A size as `64 KiB`. */
export const sizeName = (byteLength: number): string => {
  const unit = ['bytes', 'KiB', 'MiB', 'GiB'];
  const power = Math.floor(Math.log2(byteLength) / 10);
  return `${byteLength / 1024 ** power} ${unit[power]}`;
};

/** Every table and picture of an emulated run contains this sentence. */
export const EMULATED = 'emulated driver: these times say nothing about a GPU';

/** Appended to the description of a case that the GPU's clock timed. */
export const byClock = (clock: 'host' | 'gpu'): string =>
  clock === 'gpu' ? ', by the GPU’s clock' : '';

/** Groups items by key, in the order in which the keys first occur. */
export function groupBy<T>(items: readonly T[], keyOf: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) {
    const key = keyOf(item);
    const group = groups.get(key);
    if (group) group.push(item);
    else groups.set(key, [item]);
  }
  return groups;
}
