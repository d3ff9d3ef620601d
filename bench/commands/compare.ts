import { compareResults } from '../compare.ts';
import { duration, percent } from '../format.ts';
import { readResults } from '../result-file.ts';
import { parse, UsageError } from '../usage.ts';

const DEFAULT_THRESHOLD = '0.95';

/** Prints where two runs disagree; 1 where too few medians agree. */
export function compare(args: readonly string[]): number {
  const { values, positionals } = parse(args, {
    threshold: { type: 'string', default: DEFAULT_THRESHOLD },
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
  if (a.machine.gpu !== b.machine.gpu) console.log('They are of different GPUs.');
  if (a.passes !== b.passes) console.log(`A has ${a.passes} passes, B ${b.passes}.`);
  const { compared, outliers, share, alone } = compareResults(a, b);
  for (const { case: title, contestant, of, median, p10, p90 } of outliers)
    console.log(
      `outside: ${title}, ${contestant}: ${of}'s median ${duration(median)}, ` +
        `the other's p10 to p90 ${duration(p10)} to ${duration(p90)}`,
    );
  if (alone > 0) console.log(`contestants in only one of them: ${alone}`);
  if (compared === 0) {
    console.log('nothing is in both: they do not agree');
    return 1;
  }
  const agree = share >= threshold;
  console.log(
    `${compared - outliers.length} of ${compared} medians lie within the other's p10 to p90: ` +
      `${percent(share)}, at least ${percent(threshold)} asked: ` +
      (agree ? 'they agree' : 'they do not agree'),
  );
  return agree ? 0 : 1;
}
