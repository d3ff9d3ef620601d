import { compareResults } from '../compare.ts';
import { duration } from '../format.ts';
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
  const { compared, outliers, share, alone } = compareResults(a, b);
  for (const { case: title, contestant, of, median, p10, p90 } of outliers)
    console.log(
      `outside: ${title}, ${contestant}: ${of}'s median ${duration(median)}, ` +
        `the other's p10 to p90 ${duration(p10)} to ${duration(p90)}`,
    );
  if (alone > 0) console.log(`only in one of them: ${alone}`);
  const verdict = share >= threshold ? 'they agree' : 'they do not agree';
  console.log(
    `${compared - outliers.length} of ${compared} medians lie within the other's p10 to p90: ` +
      `${(share * 100).toFixed(1)} %, at least ${threshold * 100} % asked: ${verdict}`,
  );
  return share >= threshold ? 0 : 1;
}
