/** How long a new process takes until it has imported cuffi, and until it has device memory. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import type { Contestant } from '../measure.ts';
import type { DriverChoice } from '../results.ts';
import { type Case, type OpenCase, PUBLIC } from './case.ts';

const PROGRAM = fileURLToPath(new URL('../programs/startup-child.mjs', import.meta.url));

/** A process to start. */
interface Startup {
  readonly what: 'cuffi' | 'import' | 'nothing';
  /** Node's own arguments. */
  readonly execArgv: readonly string[];
}

/** Nanoseconds. */
interface StartupTimes {
  /** From before the process is made until its output arrives. */
  readonly process: number;
  /** Measured inside the process: the import, and the import with the first allocation. */
  readonly imported: number;
  readonly allocated: number;
}

const NODE: Startup = { what: 'cuffi', execArgv: [] };
const TSX: Startup = { what: 'cuffi', execArgv: ['--import', 'tsx'] };

/** Processes that do nothing, for comparison. */
const BARE: readonly (readonly [name: string, startup: Startup])[] = [
  ['bare node', { ...NODE, what: 'nothing' }],
  ['bare tsx', { ...TSX, what: 'nothing' }],
];

// Each call makes a GPU context, which takes part of a second.
const bounds = { calls: 1, rounds: 7, budgetMs: 10_000, isOnce: true, peers: [] } as const;
/** The only one with an aim: each process of a run measures it. */
const ofEachPass = { ...bounds, rounds: 9, isOnce: false } as const;

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
    ...ofEachPass,
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

/** Starts a process and waits for its exit. @throws Error if it fails */
async function startUp({ what, execArgv }: Startup, driver: DriverChoice): Promise<StartupTimes> {
  const env = { ...process.env, CUFFI_DRIVER: driver.name };
  const start = process.hrtime.bigint();
  const child = spawn(process.execPath, [...execArgv, PROGRAM, what], {
    env,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  let end = start;
  child.stdout.once('data', () => {
    end = process.hrtime.bigint();
  });
  const output = await text(child.stdout);
  const [code] = await exited;
  const [imported, allocated] = output.split(' ').map(Number);
  if (code !== 0 || imported === undefined || allocated === undefined)
    throw new Error(`the started process exited with ${code} and printed '${output}'`);
  return { process: Number(end - start), imported, allocated };
}
