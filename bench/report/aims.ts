/** The aims of a run: what was measured of each, and why it falls short where it does. */
import { type BudgetedAim, readBudget } from '../budget.ts';
import { EMULATED, multiple } from '../format.ts';
import { type Judgement, judge, verdict } from '../judge.ts';
import type { Results } from '../result-schema.ts';
import { readShortfalls, type Shortfall } from '../shortfalls.ts';
import { type Block, heading, paragraph, table } from './blocks.ts';

/** What aims are held against, and what is known of those that are not met. */
export interface AimTexts {
  readonly budget: readonly BudgetedAim[];
  readonly shortfalls: readonly Shortfall[];
}

/** A table of all aims, then the text of each case that does not meet one; none where emulated. */
export function describeAims(
  results: Results,
  { budget, shortfalls }: AimTexts = { budget: readBudget(), shortfalls: readShortfalls() },
): Block[] {
  if (results.driver.emulated) return [paragraph(`Nothing is judged: ${EMULATED}.`)];
  const judged = judge(results, budget);
  const rows = judged.map((judgement) => [
    judgement.aim,
    judgement.figure,
    judgement.ratio === undefined ? '' : multiple(judgement.ratio),
    verdict(judgement),
  ]);
  return [table(['aim', 'figure', 'ratio', ''], rows), ...describeMissed(judged, shortfalls)];
}

function describeMissed(judged: readonly Judgement[], shortfalls: readonly Shortfall[]): Block[] {
  const missed = judged.filter(({ met }) => met === false).map(({ of }) => of);
  const isOf = (one: Shortfall, { suite, case: name }: BudgetedAim): boolean =>
    one.suite === suite && one.case === name;
  const known = shortfalls.filter((one) => missed.some((aim) => isOf(one, aim)));
  const unknown = missed.filter((aim) => !shortfalls.some((one) => isOf(one, aim)));
  const names = [...new Set(unknown.map((aim) => aim.case))];
  return [
    ...known.flatMap(describeShortfall),
    ...(names.length > 0 ? [paragraph(`Not looked into yet: ${names.join(', ')}.`)] : []),
  ];
}

const describeShortfall = ({ case: name, where, tried, next }: Shortfall): Block[] => [
  heading(3, `Why ${name} falls short`),
  paragraph(`Where the time goes: ${where}`),
  paragraph(`What was tried: ${tried}`),
  paragraph(`Next: ${next}`),
];
