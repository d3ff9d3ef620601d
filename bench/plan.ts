/** The arguments of the bench, and the cases that a run measures. */
import { statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { type ParseArgsConfig, parseArgs } from 'node:util';
import { appliesTo, readAims } from './aims.ts';
import type { Case } from './cases/case.ts';
import { suites } from './cases/suites.ts';
import { titleOf, UsageError } from './results.ts';

export const USAGE = `usage: npm run bench -- [command] [options]

  run [suite ...]     measures cuffi, the raw driver calls, C and Python in turns, on one GPU: all
                      suites, or the named ones, in three processes (the default command)
    --quick           less time for each case, in one process
    --within SECONDS  for a machine that is lent: the second and the third process measure only what
                      has an aim, and no case begins later than so many seconds after the start
    --json FILE       writes a result file
    --rounds N        the most rounds of a case (default 31)
    --case NAME       only this case; may be given several times
    --large           also the cases that load a machine heavily (64 receivers)
  repeat A B [suite ...]
                      measures twice, the processes of the two runs in turns, writes both result
                      files and compares them; takes the options of run but --json
    --before FOLDER   A measures another built checkout with the bench of that checkout
  report FILE         writes tables (Markdown) and pictures (SVG) of a result file
    --out FOLDER      default: a folder with the name of the file
  compare A B         prints the medians of each file that lie outside p10 to p90 of the other
    --threshold PART  exits with 1 if fewer medians lie within (default 0.95)
  check FILE ...      compares result files with bench/aims.json: the best process of all files counts;
                      exits with 1 if an aim is missed or not measured
    --partial         ignores aims that no file measures
  join A B            adds the cases of B to the interrupted run A, in place of its own; A and B are of
                      equal machines
  page                writes docs/benchmark.md and its pictures from the committed results

  --help              prints this

Suites: ${Object.keys(suites).join(', ')}
CUFFI_DRIVER selects the driver; by default the real one if there is a GPU, else the emulated one.`;

/** Parses options. @throws UsageError */
export function parse<T extends NonNullable<ParseArgsConfig['options']>>(
  args: readonly string[],
  options: T,
): ReturnType<typeof parseArgs<{ args: string[]; allowPositionals: true; options: T }>> {
  try {
    return parseArgs({ args: [...args], allowPositionals: true, options });
  } catch (error) {
    // The first sentence; the others explain how to pass an option's name as a value.
    throw new UsageError((error as Error).message.split('. ')[0]);
  }
}

/** A case of a run. */
export interface PlannedCase extends Case {
  readonly suite: string;
}

/** What a run measures. */
export interface Plan {
  readonly cases: readonly PlannedCase[];
  /** The most rounds of a case, over all passes. */
  readonly rounds: number;
  /** Processes, one after the other; each measures all cases with its part of the rounds. */
  readonly passes: number;
  readonly quick: boolean;
  /** No case begins later than so many seconds after the start of the run, or of the pass. */
  readonly within: number | undefined;
  /** The absolute path of the result file. */
  readonly json: string | undefined;
}

const DEFAULT_ROUNDS = 31;
const PASSES = 3;
const all: readonly PlannedCase[] = Object.entries(suites).flatMap(([suite, cases]) =>
  cases.map((each) => ({ ...each, suite })),
);

/** Reads the arguments of `run`. @throws UsageError */
export function planRun(args: readonly string[]): Plan {
  const { values, positionals } = parse(args, {
    rounds: { type: 'string', default: String(DEFAULT_ROUNDS) },
    case: { type: 'string', multiple: true },
    json: { type: 'string' },
    quick: { type: 'boolean', default: false },
    large: { type: 'boolean', default: false },
    within: { type: 'string' },
  });
  const { quick, large, json } = values;
  const within = values.within === undefined ? undefined : Number(values.within);
  if (within !== undefined && !(within > 0))
    throw new UsageError(`--within takes seconds, not '${values.within}'`);
  const names = Object.keys(suites);
  for (const suite of positionals)
    if (!names.includes(suite))
      throw new UsageError(
        `there is no command or suite '${suite}'; the suites are ${names.join(', ')}`,
      );
  for (const name of values.case ?? [])
    if (!all.some((each) => each.name === name)) throw new UsageError(`there is no case '${name}'`);
  if (!/^[1-9]\d{0,5}$/.test(values.rounds))
    throw new UsageError(`--rounds takes a number from 1, not '${values.rounds}'`);
  const cases = all
    .filter(
      ({ suite, name, isLarge = false }) =>
        (positionals.length === 0 || positionals.includes(suite)) &&
        (values.case?.includes(name) ?? true) &&
        (large || !isLarge),
    )
    .map((each) => ({ ...each, isOnce: each.isOnce || (within !== undefined && !hasAim(each)) }));
  if (cases.length === 0) throw new UsageError('no case of that name in that suite');
  const rounds = Number(values.rounds);
  return {
    cases,
    rounds,
    passes: Math.min(rounds, quick ? 1 : PASSES),
    quick,
    within,
    json: json === undefined ? undefined : resultPath(json),
  };
}

/** Checks, before anything is measured, that the folder exists. @throws UsageError */
export function resultPath(path: string): string {
  const json = resolve(path);
  if (!statSync(dirname(json), { throwIfNoEntry: false })?.isDirectory())
    throw new UsageError(`${path}: there is no folder ${dirname(json)}`);
  return json;
}

const hasAim = ({ suite, name, variant, byteLength }: PlannedCase): boolean => {
  const of = { suite, name, variant: variant ?? null, byteLength: byteLength ?? null };
  return readAims().some((aim) => appliesTo(aim, of));
};

/** Identifies a case across checkouts, which may have different cases. */
export const keyOf = (of: {
  readonly suite: string;
  readonly name: string;
  readonly variant?: string | null | undefined;
}): string => `${of.suite}/${titleOf(of)}`;
