/** What was asked for on the command line. */
import { statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { suites } from './cases/all.ts';
import type { Case } from './cases/case.ts';

/** What a run does. */
export interface Options {
  readonly help: boolean;
  readonly rounds: number;
  readonly cases: readonly Case[];
  /** Whether the lateness of the event loop is measured as well. */
  readonly delays: boolean;
  /** Where the result file goes, if anywhere. */
  readonly json: string | undefined;
}

const DEFAULT_ROUNDS = 31;
/** The suite that is no list of cases: it measures one thing, in its own way. */
const DELAYS = 'event-loop';
const suiteNames = [...Object.keys(suites), DELAYS];
const namesIn = (cases: readonly Case[]): string[] => [...new Set(cases.map(({ name }) => name))];
const names = namesIn(Object.values(suites).flat());

export const USAGE = `usage: npm run bench -- [suite ...] [options]

Measures cuffi beside the raw driver call, C and Python, in one run and on one GPU. All suites, or
those that are named:

${Object.entries(suites)
  .map(([suite, cases]) => `  ${suite.padEnd(11)}  ${namesIn(cases).join(', ')}`)
  .join('\n')}
  ${DELAYS.padEnd(11)}  how late the event loop is while 1 GiB is copied

  --rounds N   how often each contestant has its turn (default ${DEFAULT_ROUNDS}); what takes long has
               fewer
  --case NAME  only this case; may be given several times
  --json PATH  write the result file as well
  --help       print this

The driver is CUFFI_DRIVER's; without it cuda where there is a GPU, else emulated.`;

/** What was typed is wrong: said with the usage. */
export class UsageError extends Error {}

/** Reads the arguments. @throws UsageError */
export function parseOptions(args: readonly string[]): Options {
  const { values, positionals } = parse(args);
  const rounds = Number(values.rounds);
  if (!/^\d+$/.test(values.rounds) || !Number.isSafeInteger(rounds) || rounds < 1)
    throw new UsageError(`--rounds takes a number from 1, not '${values.rounds}'`);
  for (const suite of positionals)
    if (!suiteNames.includes(suite)) throw new UsageError(`there is no suite '${suite}'`);
  for (const name of values.case ?? [])
    if (!names.includes(name)) throw new UsageError(`there is no case '${name}'`);
  const json = values.json === undefined ? undefined : resolve(values.json);
  // Now, not after the measuring.
  if (json !== undefined && !statSync(dirname(json), { throwIfNoEntry: false })?.isDirectory())
    throw new UsageError(`--json: there is no folder ${dirname(json)}`);
  const isChosen = (suite: string): boolean =>
    positionals.length === 0 || positionals.includes(suite);
  const selected = Object.entries(suites)
    .flatMap(([suite, cases]) => (isChosen(suite) ? cases : []))
    .filter(({ name }) => values.case?.includes(name) ?? true);
  const delays = isChosen(DELAYS) && values.case === undefined;
  if (selected.length === 0 && !delays) throw new UsageError('no case of that name in that suite');
  return { help: values.help, rounds, cases: selected, delays, json };
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({
      args: [...args],
      allowPositionals: true,
      options: {
        rounds: { type: 'string', default: String(DEFAULT_ROUNDS) },
        case: { type: 'string', multiple: true },
        json: { type: 'string' },
        help: { type: 'boolean', default: false },
      },
    });
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}
