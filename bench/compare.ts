/** Whether two runs agree. */
import { duration, multiple, percent } from './format.ts';
import {
  type CaseResult,
  type Results,
  ratiosOf,
  readResults,
  type Samples,
  summarize,
  titleOf,
  UsageError,
} from './results.ts';

/** A median of one run that lies outside p10 to p90 of the other. */
interface Outlier {
  readonly title: string;
  /** The run whose median it is. */
  readonly of: 'A' | 'B';
  readonly median: number;
  readonly other: Samples;
}

/** How far two runs agree. */
export interface Agreement {
  /** Figures that both runs have. */
  readonly figures: number;
  /** Figures that only one run has. */
  readonly unpaired: number;
  readonly outliers: readonly Outlier[];
  /** The part of the medians, two per figure, that lie within; 0 if there are no figures. */
  readonly share: number;
}

/** The part that must lie within by default. */
const ASKED_SHARE = 0.95;

/** Compares the times of all contestants, or their ratios to the first contestant. */
export function compareResults(a: Results, b: Results, what: 'times' | 'ratios'): Agreement {
  const figures = what === 'times' ? timesOf : ratiosToFirst;
  const [ofA, ofB] = [a, b].map(
    ({ cases }) => new Map(cases.flatMap((result) => figures(result))),
  ) as [Map<string, Samples>, Map<string, Samples>];
  const outliers: Outlier[] = [];
  let both = 0;
  for (const [title, first] of ofA) {
    const second = ofB.get(title);
    if (!second) continue;
    both += 1;
    const check = (of: 'A' | 'B', { median }: Samples, other: Samples): void => {
      if (median < other.p10 || median > other.p90) outliers.push({ title, of, median, other });
    };
    check('A', first, second);
    check('B', second, first);
  }
  return {
    figures: both,
    unpaired: ofA.size + ofB.size - 2 * both,
    outliers,
    share: both === 0 ? 0 : (2 * both - outliers.length) / (2 * both),
  };
}

type Figure = readonly [title: string, samples: Samples];

const timesOf = (result: CaseResult): Figure[] =>
  result.contestants.map((one) => [`${result.suite}: ${titleOf(result)}, ${one.name}`, one]);

const ratiosToFirst = (result: CaseResult): Figure[] => {
  const [first, ...others] = result.contestants;
  return others.flatMap((other) => {
    const ratios = first && ratiosOf(first, other);
    if (!ratios) return [];
    const title = `${result.suite}: ${titleOf(result)}, ${first.name} to ${other.name}`;
    return [[title, summarize(other.name, ratios)] as const];
  });
};

/** Prints how far two result files agree; returns true if their times do. @throws UsageError */
export function compareFiles(pathA: string, pathB: string, threshold = ASKED_SHARE): boolean {
  const [a, b] = readBoth(pathA, pathB);
  const times = compareResults(a, b, 'times');
  const ratios = compareResults(a, b, 'ratios');
  for (const each of times.outliers) console.log(`outside: ${describeOutlier(each, duration)}`);
  for (const each of ratios.outliers)
    console.log(`ratio outside: ${describeOutlier(each, multiple)}`);
  if (times.unpaired > 0) console.log(`contestants in only one file: ${times.unpaired}`);
  for (const [what, { figures, outliers, share }] of Object.entries({ ratios, times }))
    console.log(
      `${2 * figures - outliers.length} of ${2 * figures} medians of ${what} lie within p10 to p90 ` +
        `of the other run: ${percent(share)}`,
    );
  const agree = times.figures > 0 && times.share >= threshold;
  console.log(`they ${agree ? '' : 'do not '}agree: at least ${percent(threshold)} of times asked`);
  return agree;
}

/** Prints what B measured as slower than A. Returns true if at least 95 % of the times are not. */
export function compareWithBefore(pathA: string, pathB: string): boolean {
  const [a, b] = readBoth(pathA, pathB);
  const { figures, unpaired, outliers } = compareResults(a, b, 'times');
  const ofB = outliers.filter(({ of }) => of === 'B');
  const slower = ofB.filter(({ median, other }) => median > other.p90);
  for (const each of slower)
    console.log(
      `slower (${multiple(each.median / each.other.median)}): ${describeOutlier(each, duration)}`,
    );
  console.log(
    `${figures - ofB.length} of ${figures} medians of B lie within p10 to p90 of A; ` +
      `faster: ${ofB.length - slower.length}, slower: ${slower.length}, in only one file: ${unpaired}`,
  );
  return figures > 0 && figures - slower.length >= ASKED_SHARE * figures;
}

function readBoth(pathA: string, pathB: string): [Results, Results] {
  const both = [pathA, pathB].map((path, at) => {
    const results = readResults(path);
    const { gpu, date, commit } = results.machine;
    const missing = results.isComplete ? '' : ', incomplete';
    console.log(`${at === 0 ? 'A' : 'B'}: ${path}, ${gpu}, ${date}, commit ${commit}${missing}`);
    return results;
  }) as [Results, Results];
  const [a, b] = both;
  if (a.driver.emulated !== b.driver.emulated)
    throw new UsageError('one of the files is of the emulated driver, the other of a GPU');
  return both;
}

const describeOutlier = (
  { title, of, median, other }: Outlier,
  inWords: (figure: number) => string,
): string =>
  `${title}: median of ${of} ${inWords(median)}, ` +
  `p10 to p90 of the other ${inWords(other.p10)} to ${inWords(other.p90)}`;
