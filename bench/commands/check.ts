import { readBudget } from '../budget.ts';
import { EMULATED, multiple } from '../format.ts';
import { judge, verdict } from '../judge.ts';
import { readResults } from '../result-file.ts';
import { parse, UsageError } from '../usage.ts';

/** Prints each aim of the budget and what a run came to; 1 where one is not met. */
export function check(args: readonly string[]): number {
  const { values, positionals } = parse(args, { partial: { type: 'boolean', default: false } });
  const [path, ...more] = positionals;
  if (path === undefined || more.length > 0) throw new UsageError('check takes one result file');
  const results = readResults(path);
  if (results.driver.emulated) throw new UsageError(`${path}: ${EMULATED}`);
  const judged = judge(results, readBudget()).filter(
    ({ met }) => met !== undefined || !values.partial,
  );
  for (const judgement of judged) {
    const { aim, figure, ratio } = judgement;
    const measured = ratio === undefined ? '' : `: ${figure}: ${multiple(ratio)}`;
    console.log(`${verdict(judgement).padEnd(12)}  ${aim}${measured}`);
  }
  const count = (met: boolean | undefined): number =>
    judged.filter((one) => one.met === met).length;
  console.log(`${count(true)} met, ${count(false)} not met, ${count(undefined)} not measured`);
  return count(true) === judged.length && judged.length > 0 ? 0 : 1;
}
