/** What samples come to. */

/** The times of one contestant, in nanoseconds per call: one a round, and what they come to. */
export interface Samples {
  readonly name: string;
  readonly median: number;
  readonly p10: number;
  readonly lowerQuartile: number;
  readonly upperQuartile: number;
  readonly p90: number;
  /** How wide p10 to p90 is, as a part of the median. */
  readonly spread: number;
  readonly samples: readonly number[];
}

/** Summarizes what was measured of one contestant. */
export function summarize(name: string, samples: readonly number[]): Samples {
  const sorted = [...samples].sort((a, b) => a - b);
  const [p10, median, p90] = [quantile(sorted, 0.1), quantile(sorted, 0.5), quantile(sorted, 0.9)];
  return {
    name,
    median,
    p10,
    lowerQuartile: quantile(sorted, 0.25),
    upperQuartile: quantile(sorted, 0.75),
    p90,
    spread: median > 0 ? (p90 - p10) / median : 0,
    samples,
  };
}

/** The value below which a fraction of them lies; between two of them in proportion. */
export function quantile(sorted: readonly number[], fraction: number): number {
  const position = (sorted.length - 1) * fraction;
  const below = sorted[Math.floor(position)] ?? Number.NaN;
  const above = sorted[Math.ceil(position)] ?? Number.NaN;
  return below + (above - below) * (position - Math.floor(position));
}

/**
 * How many times as long one takes as another, round by round, as the two of one round came right
 * after each other, in the same pass: what slows a machine down for seconds is in both of them.
 * Undefined where one took part in fewer rounds.
 */
export const ratiosOf = (one: Samples, other: Samples): number[] | undefined =>
  one.samples.length === other.samples.length
    ? one.samples.map((ns, at) => ns / (other.samples[at] as number))
    : undefined;

/**
 * How many times as long one takes as another: the median of the ratios of their rounds. Where one
 * took part in fewer rounds: the ratio of the medians.
 */
export function ratioOf(one: Samples, other: Samples): number {
  const ratios = ratiosOf(one, other);
  if (!ratios) return one.median / other.median;
  return quantile(
    ratios.sort((a, b) => a - b),
    0.5,
  );
}

/** How much longer one takes than another: as {@link ratioOf}, the difference. */
export function differenceOf(one: Samples, other: Samples): number {
  if (one.samples.length !== other.samples.length) return one.median - other.median;
  const differences = one.samples.map((ns, at) => ns - (other.samples[at] as number));
  return quantile(
    differences.sort((a, b) => a - b),
    0.5,
  );
}
