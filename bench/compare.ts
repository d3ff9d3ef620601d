/** Whether two runs agree. */
import type { CaseResult, Results } from './result-schema.ts';
import { ratiosOf, type Samples, summarize } from './statistics.ts';

/** A median of one run that lies outside p10 to p90 of the other. */
export interface Outlier {
  readonly case: string;
  readonly contestant: string;
  /** The run whose median it is. */
  readonly of: 'A' | 'B';
  readonly median: number;
  /** Of the other run. */
  readonly other: Pick<Samples, 'median' | 'p10' | 'p90'>;
}

/** How far two runs agree in one kind of figure. */
export interface Agreement {
  /** How many medians were held against the other run: two of each figure that is in both. */
  readonly compared: number;
  readonly outliers: readonly Outlier[];
  /** The part that lies within; 0 where nothing is in both. */
  readonly share: number;
}

/** What comparing came to. */
export interface Comparison {
  /** Of the times of each contestant. */
  readonly times: Agreement;
  /** Of the ratios of the first contestant of a case to each other one, round by round. */
  readonly ratios: Agreement;
  /** Contestants that only one of them has. */
  readonly alone: number;
}

/** A case in words that no other has. */
export const titleOf = ({ name, variant }: Pick<CaseResult, 'name' | 'variant'>): string =>
  variant === null ? name : `${name}, ${variant}`;

/** Holds each median of one run against p10 to p90 of the other, and the other way round. */
export function compareResults(a: Results, b: Results): Comparison {
  const [ofA, ofB] = [figuresOf(a, timesOf), figuresOf(b, timesOf)];
  const times = agreementOf(ofA, ofB);
  const ratios = agreementOf(figuresOf(a, ratiosToOthers), figuresOf(b, ratiosToOthers));
  return { times, ratios, alone: ofA.size + ofB.size - times.compared };
}

/** What became of the rows of a suite since an earlier run, which took turns with this one. */
export interface Changes {
  readonly suite: string;
  /** How many rows are in both: a contestant of a case each. */
  readonly rows: number;
  /** The medians of the later run below p10 of the earlier one, and above its p90. */
  readonly quicker: readonly Outlier[];
  readonly slower: readonly Outlier[];
  /** The part of the rows whose median lies within; 0 where nothing is in both. */
  readonly share: number;
  /** Rows that only one of them has. */
  readonly alone: number;
}

/** The part of the medians that must lie within, where nothing else is asked. */
export const ASKED_SHARE = 0.95;

/** Holds each median of a suite in `now` against p10 to p90 in `before`. */
export function changesSince(before: Results, now: Results, suite: string): Changes {
  const [a, b] = [before, now].map(({ cases, ...run }) => ({
    ...run,
    cases: cases.filter((result) => result.suite === suite),
  })) as [Results, Results];
  const {
    times: { compared, outliers },
    alone,
  } = compareResults(a, b);
  const ofNow = outliers.filter(({ of }) => of === 'B');
  const quicker = ofNow.filter(({ median, other }) => median < other.p10);
  const slower = ofNow.filter(({ median, other }) => median > other.p90);
  const rows = compared / 2;
  const share = rows === 0 ? 0 : (rows - ofNow.length) / rows;
  return { suite, rows, quicker, slower, share, alone };
}

/** What was measured of one contestant, round by round. */
interface Figure {
  readonly case: string;
  readonly samples: Samples;
}

function agreementOf(
  ofA: ReadonlyMap<string, Figure>,
  ofB: ReadonlyMap<string, Figure>,
): Agreement {
  const outliers: Outlier[] = [];
  let both = 0;
  for (const [key, first] of ofA) {
    const second = ofB.get(key);
    if (!second) continue;
    both += 1;
    const where = { case: first.case, contestant: first.samples.name };
    const hold = (of: 'A' | 'B', { median }: Samples, other: Samples): void => {
      if (median < other.p10 || median > other.p90) outliers.push({ ...where, of, median, other });
    };
    hold('A', first.samples, second.samples);
    hold('B', second.samples, first.samples);
  }
  const compared = 2 * both;
  const share = compared === 0 ? 0 : (compared - outliers.length) / compared;
  return { compared, outliers, share };
}

const timesOf = ({ contestants }: CaseResult): readonly Samples[] => contestants;

/** Of those alone that have a ratio in each round. */
const ratiosToOthers = ({ contestants: [first, ...others] }: CaseResult): Samples[] =>
  others.flatMap((other) => {
    const ratios = first && ratiosOf(first, other);
    return ratios ? [summarize(other.name, ratios)] : [];
  });

const figuresOf = (
  results: Results,
  read: (result: CaseResult) => readonly Samples[],
): Map<string, Figure> =>
  new Map(
    results.cases.flatMap((result) =>
      read(result).map((samples) => {
        const title = titleOf(result);
        return [JSON.stringify([result.suite, title, samples.name]), { case: title, samples }];
      }),
    ),
  );
