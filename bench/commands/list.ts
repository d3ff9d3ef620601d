import { DELAYS } from '../budget.ts';
import { suites } from '../cases/all.ts';
import { byClock } from '../format.ts';
import { groupBy } from '../group.ts';
import { parse, UsageError } from '../usage.ts';

/** Prints the suites, each case with its variants. */
export function list(args: readonly string[]): number {
  const { positionals } = parse(args, {});
  if (positionals.length > 0) throw new UsageError(`list takes no '${positionals[0]}'`);
  for (const [suite, cases] of Object.entries(suites)) {
    console.log(suite);
    const variants = groupBy(cases, ({ name }) => name);
    for (const [name, ofName] of variants) {
      const told = ofName.flatMap(({ variant, isLarge }) =>
        variant === undefined ? [] : [isLarge ? `${variant} (--large)` : variant],
      );
      const { what, clock = 'host' } = ofName.at(-1) as (typeof ofName)[number];
      console.log(
        `  ${name}${told.length > 0 ? ` (${told.join(', ')})` : ''}: ${what}${byClock(clock)}`,
      );
    }
  }
  console.log(`${DELAYS}\n  how late the event loop is while 1 GiB is copied, awaited`);
  return 0;
}
