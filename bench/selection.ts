/** Which cases of which suites a run has. */
import { statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { DELAYS } from './budget.ts';
import { suites } from './cases/all.ts';
import type { Case } from './cases/case.ts';
import { mostPasses } from './passes.ts';
import { parse, UsageError } from './usage.ts';

/** What a run does. */
export interface Selection {
  /** The most, over all passes. */
  readonly rounds: number;
  readonly passes: number;
  readonly quick: boolean;
  readonly cases: readonly { readonly suite: string; readonly measured: Case }[];
  /** Whether the lateness of the event loop is measured as well. */
  readonly delays: boolean;
  /** Where the result file goes, if anywhere. */
  readonly json: string | undefined;
}

const DEFAULT_ROUNDS = 31;
const DEFAULT_PASSES = 2;
const QUICK_PASSES = 1;
const suiteNames = [...Object.keys(suites), DELAYS];
const all = Object.entries(suites).flatMap(([suite, cases]) =>
  cases.map((measured) => ({ suite, measured })),
);

/** Reads the arguments of a run. @throws UsageError */
export function selectRun(args: readonly string[]): Selection {
  const { values, positionals } = parse(args, {
    rounds: { type: 'string', default: String(DEFAULT_ROUNDS) },
    passes: { type: 'string' },
    case: { type: 'string', multiple: true },
    json: { type: 'string' },
    quick: { type: 'boolean', default: false },
    large: { type: 'boolean', default: false },
  });
  const rounds = numberOf('--rounds', values.rounds);
  const passes = numberOf(
    '--passes',
    values.passes ?? String(values.quick ? QUICK_PASSES : DEFAULT_PASSES),
  );
  for (const suite of positionals)
    if (!suiteNames.includes(suite))
      throw new UsageError(
        `there is no command or suite '${suite}'; the suites are ${suiteNames.join(', ')}`,
      );
  for (const name of values.case ?? [])
    if (!all.some(({ measured }) => measured.name === name))
      throw new UsageError(`there is no case '${name}'`);
  const isChosen = (suite: string): boolean =>
    positionals.length === 0 || positionals.includes(suite);
  const cases = all.filter(
    ({ suite, measured: { name, isLarge = false } }) =>
      isChosen(suite) && (values.case?.includes(name) ?? true) && (values.large || !isLarge),
  );
  const delays = isChosen(DELAYS) && values.case === undefined;
  if (cases.length === 0 && !delays) throw new UsageError('no case of that name in that suite');
  const { quick } = values;
  // What is in fewer needs no more.
  const most = Math.max(1, ...cases.map(({ measured }) => mostPasses(measured, rounds)));
  return {
    rounds,
    passes: Math.min(passes, most),
    quick,
    cases,
    delays,
    json: values.json === undefined ? undefined : resultPath(values.json),
  };
}

/** The same arguments, without the suites that they name: all of them. */
export const allSuites = (args: readonly string[]): string[] =>
  args.filter((arg, at) => !suiteNames.includes(arg) || args[at - 1] === '--case');

function numberOf(option: string, text: string): number {
  const number = Number(text);
  if (!/^\d+$/.test(text) || !Number.isSafeInteger(number) || number < 1)
    throw new UsageError(`${option} takes a number from 1, not '${text}'`);
  return number;
}

/** Where a result file goes; a wrong place is told of now, not after the measuring. @throws UsageError */
export function resultPath(path: string): string {
  const json = resolve(path);
  if (!statSync(dirname(json), { throwIfNoEntry: false })?.isDirectory())
    throw new UsageError(`${path}: there is no folder ${dirname(json)}`);
  return json;
}
