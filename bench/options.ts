/** What was asked for on the command line. */
import { statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { cases } from './cases/all.ts';
import type { Case } from './cases/case.ts';

/** What a run does. */
export interface Options {
  readonly help: boolean;
  readonly rounds: number;
  readonly cases: readonly Case[];
  /** Where the result file goes, if anywhere. */
  readonly json: string | undefined;
}

const DEFAULT_ROUNDS = 31;
const names = [...new Set(cases.map(({ name }) => name))];

export const USAGE = `usage: npm run bench -- [options]

Measures cuffi beside the raw driver call, C and Python, in one run and on one GPU.

  --rounds N   how often each contestant has its turn (default ${DEFAULT_ROUNDS})
  --case NAME  only this case; may be given several times. Cases:
               ${names.join(', ')}
  --json PATH  write the result file as well
  --help       print this

The driver is CUFFI_DRIVER's; without it cuda where there is a GPU, else emulated.`;

/** What was typed is wrong: said with the usage. */
export class UsageError extends Error {}

/** Reads the arguments. @throws UsageError */
export function parseOptions(args: readonly string[]): Options {
  const values = parse(args);
  const rounds = Number(values.rounds);
  if (!/^\d+$/.test(values.rounds) || !Number.isSafeInteger(rounds) || rounds < 1)
    throw new UsageError(`--rounds takes a number from 1, not '${values.rounds}'`);
  for (const name of values.case ?? [])
    if (!names.includes(name)) throw new UsageError(`there is no case '${name}'`);
  const json = values.json === undefined ? undefined : resolve(values.json);
  // Now, not after the measuring.
  if (json !== undefined && !statSync(dirname(json), { throwIfNoEntry: false })?.isDirectory())
    throw new UsageError(`--json: there is no folder ${dirname(json)}`);
  const selected = cases.filter(({ name }) => values.case?.includes(name) ?? true);
  return { help: values.help, rounds, cases: selected, json };
}

function parse(args: readonly string[]) {
  try {
    const { values } = parseArgs({
      args: [...args],
      options: {
        rounds: { type: 'string', default: String(DEFAULT_ROUNDS) },
        case: { type: 'string', multiple: true },
        json: { type: 'string' },
        help: { type: 'boolean', default: false },
      },
    });
    return values;
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
}
