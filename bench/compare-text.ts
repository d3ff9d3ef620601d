/** How far two runs agree, in words. */
import type { Agreement } from './compare.ts';
import { percent } from './format.ts';
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
