/** From which size on handing memory over is quicker than copying what is in it. */
import { sizeName } from '../bytes.ts';
import type { CaseResult, Results } from '../result-schema.ts';
import { type Block, table } from './blocks.ts';
import { contestantsIn, groupsOf } from './groups.ts';
import { marked } from './tables.ts';

const SUITE = 'hand-over';

/** One size and the medians there of two ways. */
export interface Pair {
  readonly byteLength: number;
  readonly sharing: number;
  readonly copying: number;
}

/**
 * The size below which copying wins: 0 where sharing wins at all sizes, Infinity where it does at
 * none; between two measured sizes, where the straight lines cross that a log-log plot draws.
 */
export function crossover(pairs: readonly Pair[]): number {
  const sorted = [...pairs].sort((a, b) => a.byteLength - b.byteLength);
  const gain = ({ sharing, copying }: Pair): number => Math.log(copying / sharing);
  // The last size at which copying wins: above it sharing wins for good.
  const last = sorted.findLastIndex((pair) => gain(pair) < 0);
  const [below, above] = [sorted[last], sorted[last + 1]];
  if (!below) return 0;
  if (!above) return Number.POSITIVE_INFINITY;
  const part = gain(below) / (gain(below) - gain(above));
  return below.byteLength * (above.byteLength / below.byteLength) ** part;
}

/** A table of the crossovers of a run: the first contestant of each case against each way of copying. */
export function describeCrossovers(results: Results): Block[] {
  const groups = groupsOf(results).filter(({ suite, axis }) => suite === SUITE && axis);
  const all = groups.flatMap(({ cases }) => cases);
  const copies = contestantsIn(all).filter((name) => name.startsWith('copying'));
  const rows = groups.map(({ name, cases }) => {
    const sharing = cases[0]?.contestants[0]?.name ?? '';
    const below = (copying: string): string =>
      inWords(crossover(pairsOf(cases, sharing, all, copying)));
    return [groups.length > 1 ? name : sharing, ...copies.map(below)];
  });
  if (copies.length === 0) return [];
  return marked(results, [table(['copying wins below', ...copies], rows)]);
}

function pairsOf(
  cases: readonly CaseResult[],
  sharing: string,
  all: readonly CaseResult[],
  copying: string,
): Pair[] {
  const medianOf = (name: string, from: readonly CaseResult[], size: number | null) =>
    from
      .filter(({ byteLength }) => byteLength === size)
      .flatMap(({ contestants }) => contestants)
      .find((contestant) => contestant.name === name)?.median;
  return cases.flatMap(({ byteLength }) => {
    const [own, other] = [medianOf(sharing, cases, byteLength), medianOf(copying, all, byteLength)];
    return byteLength === null || own === undefined || other === undefined
      ? []
      : [{ byteLength, sharing: own, copying: other }];
  });
}

function inWords(byteLength: number): string {
  if (byteLength === 0) return 'no size measured';
  if (byteLength === Number.POSITIVE_INFINITY) return 'every size measured';
  // A power of two: what lies between two measured sizes is no more exact.
  return `about ${sizeName(2 ** Math.round(Math.log2(byteLength)))}`;
}
