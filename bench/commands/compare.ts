import { ASKED_SHARE, compareResults, type Outlier } from '../compare.ts';
import { describeKind, describeRatios, describeTimes } from '../compare-text.ts';
import { duration, multiple, percent } from '../format.ts';
import { readResults } from '../result-file.ts';
import { parse, UsageError } from '../usage.ts';

/** Said of two runs of which one was stopped. */
export const INCOMPLETE = 'Not all was measured: only what is in both is compared.';

/** Prints where two runs disagree; 1 where too few medians agree. */
export function compare(args: readonly string[]): number {
  const { values, positionals } = parse(args, {
    threshold: { type: 'string', default: `${ASKED_SHARE}` },
  });
  const threshold = Number(values.threshold);
  if (values.threshold.trim() === '' || !(threshold >= 0 && threshold <= 1))
    throw new UsageError(`--threshold takes a part from 0 to 1, not '${values.threshold}'`);
  const [pathA, pathB, ...more] = positionals;
  if (pathA === undefined || pathB === undefined || more.length > 0)
    throw new UsageError('compare takes two result files');
  const [a, b] = [readResults(pathA), readResults(pathB)];
  if (a.driver.emulated !== b.driver.emulated)
    throw new UsageError('one of them is of the emulated driver, the other of a GPU');

  console.log(`A: ${pathA}, ${a.machine.gpu}, ${a.machine.date}`);
  console.log(`B: ${pathB}, ${b.machine.gpu}, ${b.machine.date}`);
  if (!a.isComplete || !b.isComplete) console.log(INCOMPLETE);
  if (a.machine.gpu !== b.machine.gpu) console.log('They are of different GPUs.');
  if (a.passes !== b.passes) console.log(`A has ${a.passes} passes, B ${b.passes}.`);
  console.log(`${describeKind(a, b)}.`);
  const { times, ratios, alone } = compareResults(a, b);
  for (const outlier of times.outliers)
    console.log(`outside: ${describeOutlier(outlier, outlier.contestant, duration)}`);
  for (const outlier of ratios.outliers)
    console.log(`ratio outside: ${describeOutlier(outlier, `to ${outlier.contestant}`, multiple)}`);
  if (alone > 0) console.log(`contestants in only one of them: ${alone}`);
  if (times.compared === 0) {
    console.log('nothing is in both: they do not agree');
    return 1;
  }
  if (ratios.compared > 0) console.log(describeRatios(ratios));
  const agree = times.share >= threshold;
  console.log(
    `${describeTimes(times)}, at least ${percent(threshold)} asked: ` +
      (agree ? 'they agree' : 'they do not agree'),
  );
  return agree ? 0 : 1;
}

const describeOutlier = (
  { case: title, of, median, other }: Outlier,
  whose: string,
  inWords: (figure: number) => string,
): string =>
  `${title}, ${whose}: ${of}'s median ${inWords(median)}, ` +
  `the other's p10 to p90 ${inWords(other.p10)} to ${inWords(other.p90)}`;
