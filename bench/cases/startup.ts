/** How long a process takes until it has device memory, each time in a process of its own. */
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';
import { type Startup, type StartupTimes, startUp } from '../programs/startup.ts';
import type { Case, OpenCase } from './case.ts';
import { PUBLIC } from './names.ts';

const NODE: Startup = { what: 'cuffi', execArgv: [] };
const TSX: Startup = { what: 'cuffi', execArgv: ['--import', 'tsx'] };

/** What does nothing, of each. */
const BARE: readonly (readonly [name: string, startup: Startup])[] = [
  ['bare node', { ...NODE, what: 'nothing' }],
  ['bare tsx', { ...TSX, what: 'nothing' }],
];

// A context of the GPU is made in each: seconds of a case go by. Each is a new process anyway.
const bounds = { calls: 1, rounds: 7, passes: 2, budgetMs: 15_000, peers: [] } as const;

export const startupCases: readonly Case[] = [
  {
    name: 'startup.process',
    what: 'from the start of a process to its first allocation, beside one that does nothing',
    ...bounds,
    open: (driver) =>
      open(driver, ({ process }) => process, [
        [`${PUBLIC}, node`, NODE],
        [`${PUBLIC}, tsx`, TSX],
        ...BARE,
      ]),
  },
  {
    name: 'startup.imported',
    what: 'from the start of a process until it has imported cuffi, beside one that does nothing',
    ...bounds,
    open: (driver) =>
      open(driver, ({ process }) => process, [
        [`${PUBLIC}, node`, { ...NODE, what: 'import' }],
        [`${PUBLIC}, tsx`, { ...TSX, what: 'import' }],
        ...BARE,
      ]),
  },
  {
    name: 'startup.import',
    what: 'import of cuffi, as the process itself measures it',
    ...bounds,
    open: (driver) =>
      open(driver, ({ imported }) => imported, [
        [`${PUBLIC}, node`, NODE],
        [`${PUBLIC}, tsx`, TSX],
      ]),
  },
  {
    name: 'startup.allocate',
    what: 'first allocation after the import: the driver opened, a context made, 4 KiB',
    ...bounds,
    open: (driver) =>
      open(driver, ({ imported, allocated }) => allocated - imported, [
        [`${PUBLIC}, node`, NODE],
        [`${PUBLIC}, tsx`, TSX],
      ]),
  },
];

function open(
  driver: DriverChoice,
  part: (times: StartupTimes) => number,
  contestants: readonly (readonly [name: string, startup: Startup])[],
): OpenCase {
  const contestant = ([name, startup]: (typeof contestants)[number]): Contestant => ({
    name,
    async run(calls) {
      let ns = 0;
      for (let call = 0; call < calls; call += 1) ns += part(await startUp(startup, driver));
      return ns;
    },
  });
  return { contestants: contestants.map(contestant), close() {} };
}
