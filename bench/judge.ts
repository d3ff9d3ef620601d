/** Holds a run against the budget. */
import { type BudgetedAim, concerns, DELAYS } from './budget.ts';
import { titleOf } from './compare.ts';
import { duration, multiple } from './format.ts';
import type { CaseResult, Results } from './result-schema.ts';
import { differenceOf, ratioOf } from './statistics.ts';

/** An aim and what was measured of it. */
export interface Judgement {
  /** Of the budget. */
  readonly of: BudgetedAim;
  readonly aim: string;
  /** In words; why there is none where it was not measured. */
  readonly figure: string;
  /** Of what was measured to what it is held against. */
  readonly ratio: number | undefined;
  /** Undefined where it was not measured. */
  readonly met: boolean | undefined;
}

/** One judgement for each case that an aim concerns; one that says so where nothing was measured. */
export function judge(results: Results, budget: readonly BudgetedAim[]): Judgement[] {
  return budget.flatMap((aim) => {
    if (aim.suite === DELAYS) return [judgeDelay(results, aim)];
    const cases = results.cases.filter((result) => concerns(aim, result));
    if (cases.length === 0) return [notMeasured(aim, aimedCase(aim))];
    return cases.map((result) => judgeCase(result, aim));
  });
}

function judgeCase(result: CaseResult, aim: BudgetedAim): Judgement {
  const { over, versus, max, maxUs } = aim;
  const find = (name: string | undefined) =>
    result.contestants.find((contestant) => contestant.name === name);
  const own = aim.contestant === undefined ? result.contestants[0] : find(aim.contestant);
  const title = titleOf(result);
  if (!own) return notMeasured(aim, title);
  const figure = `${own.name} ${duration(own.median)}`;
  if (over !== undefined) {
    const bare = find(over);
    if (!bare) return notMeasured(aim, title);
    const pair = `${figure}, ${over} ${duration(bare.median)}`;
    return judgeTime(aim, title, { figure: pair, ns: differenceOf(own, bare), maxUs });
  }
  if (versus === undefined) return judgeTime(aim, title, { figure, ns: own.median, maxUs });
  const other = find(versus);
  if (!other || max === undefined) return notMeasured(aim, title);
  const ratio = ratioOf(own, other);
  return {
    of: aim,
    aim: describe(aim, title),
    figure: `${figure}, ${versus} ${duration(other.median)}`,
    ratio,
    met: ratio <= max,
  };
}

function judgeDelay({ delays }: Results, aim: BudgetedAim): Judgement {
  const title = aim.contestant ?? aim.case;
  const delay = delays.find(({ name }) => name === aim.contestant);
  if (!delay) return notMeasured(aim, title);
  const ns = delay[aim.statistic];
  const figure = `${aim.statistic} ${duration(ns)}`;
  return judgeTime(aim, title, { figure, ns, maxUs: aim.maxUs });
}

function judgeTime(
  aim: BudgetedAim,
  title: string,
  { figure, ns, maxUs = Number.NaN }: { figure: string; ns: number; maxUs: number | undefined },
): Judgement {
  const ratio = ns / (maxUs * 1000);
  return { of: aim, aim: describe(aim, title), figure, ratio, met: ratio <= 1 };
}

const notMeasured = (aim: BudgetedAim, title: string): Judgement => ({
  of: aim,
  aim: describe(aim, title),
  figure: 'not measured',
  ratio: undefined,
  met: undefined,
});

const aimedCase = (aim: BudgetedAim): string =>
  aim.variant === undefined ? aim.case : `${aim.case}, ${aim.variant}`;

function describe(
  { suite, over, versus, max, maxUs = 0, statistic, contestant }: BudgetedAim,
  title: string,
): string {
  const most =
    versus === undefined
      ? `${duration(maxUs * 1000)}${over === undefined ? '' : ` over ${over}`}`
      : `${multiple(max ?? Number.NaN)} times ${versus}`;
  const whose = suite === DELAYS || contestant === undefined ? '' : `, ${contestant}`;
  return `${suite}: ${title}${whose}: ${statistic} at most ${most}`;
}

/** A judgement in a word. */
export const verdict = ({ met }: Judgement): string =>
  met === undefined ? 'not measured' : met ? 'met' : 'not met';
