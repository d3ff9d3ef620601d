/** Whether two runs agree. */
import type { CaseResult, Results } from './result-schema.ts';
import type { Samples } from './statistics.ts';

/** A median of one run that lies outside p10 to p90 of the other. */
export interface Outlier {
  readonly case: string;
  readonly contestant: string;
  /** The run whose median it is. */
  readonly of: 'A' | 'B';
  readonly median: number;
  readonly p10: number;
  readonly p90: number;
}

/** What comparing came to. */
export interface Comparison {
  /** How many medians were held against the other run: two of each contestant in both. */
  readonly compared: number;
  readonly outliers: readonly Outlier[];
  /** The part that lies within; 0 where nothing is in both. */
  readonly share: number;
  /** Contestants that only one of them has. */
  readonly alone: number;
}

/** A case in words that no other has. */
export const titleOf = ({ name, variant }: Pick<CaseResult, 'name' | 'variant'>): string =>
  variant === null ? name : `${name}, ${variant}`;

/** Holds each median of one run against p10 to p90 of the other, and the other way round. */
export function compareResults(a: Results, b: Results): Comparison {
  const ofB = contestantsOf(b);
  const outliers: Outlier[] = [];
  let both = 0;
  for (const [key, first] of contestantsOf(a)) {
    const second = ofB.get(key);
    if (!second) continue;
    both += 1;
    const where = { case: first.case, contestant: first.samples.name };
    const hold = (of: 'A' | 'B', { median }: Samples, { p10, p90 }: Samples): void => {
      if (median < p10 || median > p90) outliers.push({ ...where, of, median, p10, p90 });
    };
    hold('A', first.samples, second.samples);
    hold('B', second.samples, first.samples);
  }
  const compared = 2 * both;
  const share = compared === 0 ? 0 : (compared - outliers.length) / compared;
  return { compared, outliers, share, alone: contestantsOf(a).size + ofB.size - compared };
}

const contestantsOf = (results: Results): Map<string, { case: string; samples: Samples }> =>
  new Map(
    results.cases.flatMap((result) =>
      result.contestants.map((samples) => {
        const title = titleOf(result);
        return [JSON.stringify([result.suite, title, samples.name]), { case: title, samples }];
      }),
    ),
  );
