/**
 * Passes: each is a process of its own that runs the cases from the first to the last, beside
 * freshly started programs of other languages.
 *
 * What differs between two runs is less the jitter of a second than the process (what V8 compiled
 * when, where its memory lies, which CPU it is on) and the slow drift of a machine. One pass sees
 * one of each; the samples of several, together, cover what a repeated run would see.
 *
 * The suites of short ways and calls come in laps, too: several times in a pass, from the first case
 * to the last, each time with a part of the rounds. What drifts for half a minute is then in all of
 * them, without a process that must get warm again.
 */
import type { Case } from './cases/case.ts';
import type { CaseResult, Results } from './result-schema.ts';
import { summarize } from './statistics.ts';

/** Which of how many passes, from 0. */
export interface Pass {
  readonly index: number;
  readonly of: number;
}

/** The suites that come in laps. */
export const LAPPED: ReadonlySet<string> = new Set(['calls', 'hand-over']);
/** How many a pass has, where it is not quick. */
export const LAPS = 3;

/** A part of a part: which it is of all. */
export const within = (pass: Pass, part: Pass): Pass => ({
  index: pass.index * part.of + part.index,
  of: pass.of * part.of,
});

/** A pass's part of what is counted over all of them: as even as it can be, the last never less. */
export const shareOf = (total: number, { index, of }: Pass): number =>
  Math.floor(((index + 1) * total) / of) - Math.floor((index * total) / of);

/** Which pass it is of a case that is in `most` of them at most; undefined where it has no part. */
export function partOf(pass: Pass, most: number): Pass | undefined {
  const of = Math.min(most, pass.of);
  if (shareOf(of, pass) === 0) return undefined;
  return { index: Math.floor((pass.index * of) / pass.of), of };
}

/** In how many passes a case is at most, of a run of so many rounds: in none without a round. */
export const mostPasses = (
  { passes, rounds: own }: Pick<Case, 'passes' | 'rounds'>,
  rounds: number,
): number => Math.min(passes ?? rounds, own ?? rounds, rounds);

/** What the passes of one case come to, of which there is one at least: their samples in turns. */
export function mergeCase(ofPasses: readonly CaseResult[]): CaseResult {
  const names = new Set(ofPasses.flatMap(({ contestants }) => contestants.map(({ name }) => name)));
  const samplesOf = (name: string): readonly (readonly number[])[] =>
    ofPasses.map(({ contestants }) => contestants.find((one) => one.name === name)?.samples ?? []);
  const contestants = [...names]
    .map((name) => summarize(name, inTurns(samplesOf(name))))
    .filter(({ samples }) => samples.length > 0);
  const skipped = uniqueByName(ofPasses.flatMap((result) => result.skipped));
  return { ...(ofPasses[0] as CaseResult), contestants, skipped };
}

/** Each once: it is skipped in every pass. */
export const uniqueByName = (skipped: Results['skipped']): Results['skipped'] => [
  ...new Map(skipped.map((one) => [one.name, one])).values(),
];

/** One of each list in turns, until none has any left. */
function inTurns(lists: readonly (readonly number[])[]): number[] {
  const most = Math.max(0, ...lists.map(({ length }) => length));
  return Array.from({ length: most }, (_, at) =>
    lists.flatMap((list) => list.slice(at, at + 1)),
  ).flat();
}
