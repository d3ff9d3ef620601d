/** Numbers as people read them. */

/** Nanoseconds with a unit. */
export function duration(ns: number): string {
  if (ns < 1e4) return `${ns.toFixed(ns < 100 ? 1 : 0)} ns`;
  if (ns < 1e7) return `${(ns / 1e3).toFixed(1)} us`;
  if (ns < 1e10) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(1)} s`;
}

/** A ratio. */
export const multiple = (ratio: number): string =>
  ratio < 100 ? ratio.toPrecision(3) : ratio.toFixed(0);

/** 1e9 bytes a second. */
export const speed = (byteLength: number, ns: number): string => {
  const gigabytes = byteLength / ns;
  return gigabytes < 1000 ? gigabytes.toPrecision(3) : gigabytes.toFixed(0);
};

/** A part as per cent, cut off: what falls short of a limit never reads as if it had reached it. */
export const percent = (part: number): string =>
  `${(Math.floor(part * 1000 + 1e-9) / 10).toFixed(1)} %`;

/** What every table and picture of an emulated run says. */
export const EMULATED = 'emulated driver: says nothing of a GPU';

/** Over how many processes the rounds were spread, where they were. */
export const inPasses = (passes: number): string => (passes > 1 ? ` in ${passes} passes` : '');

/** Whose clock times are by, where that is not the host's; as a tail of what they are. */
export const byClock = (clock: 'host' | 'gpu'): string =>
  clock === 'gpu' ? ', by the GPU’s clock' : '';
