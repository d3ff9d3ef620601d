/** How far two runs agree, in words. */
import type { Agreement, Changes } from './compare.ts';
import { duration, multiple, percent } from './format.ts';
import type { Results } from './result-schema.ts';

/** How the two were made: what drifts for minutes is in both of them, or between them. */
export const describeKind = (a: Results, b: Results): string =>
  a.inTurns && b.inTurns
    ? 'The two took turns, so that what drifts on the machine is in both'
    : 'One was made after the other, so that what drifts on the machine is between them';

/** How many times lie within. */
export const describeTimes = ({ compared, outliers, share }: Agreement): string =>
  `${compared - outliers.length} of ${compared} medians lie within the other's p10 to p90: ${percent(share)}`;

/** How many ratios do. */
export const describeRatios = ({ compared, outliers, share }: Agreement): string =>
  `${compared - outliers.length} of ${compared} ratios of the first contestant to another, medians of ` +
  `their rounds', lie within the other's p10 to p90: ${percent(share)}`;

/** How the rows of a suite stand against those of an earlier checkout: a line, and one for each slower row. */
export const describeChanges = (
  { suite, rows, quicker, slower, share, alone }: Changes,
  asked: number,
): string[] => [
  `${suite}: ${rows - quicker.length - slower.length} of ${rows} medians of B lie within A's p10 to p90: ` +
    `${percent(share)}, at least ${percent(asked)} asked; quicker: ${quicker.length}, slower: ${slower.length}` +
    (alone > 0 ? `, in only one of them: ${alone}` : ''),
  ...slower.map(
    ({ case: title, contestant, median, other }) =>
      `slower: ${title}, ${contestant}: ${duration(median)}, ${multiple(median / other.median)} times A's ` +
      `${duration(other.median)} (p10 to p90 ${duration(other.p10)} to ${duration(other.p90)})`,
  ),
];
