/** Runs: `run` measures once, `repeat` twice in turns. Each pass is a process of its own. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readAims } from './aims.ts';
import { compareFiles, compareWithBefore } from './compare.ts';
import { duration } from './format.ts';
import { INTERRUPTED, Interrupted, interruption, savedAtExit } from './interrupt.ts';
import { keyOf, type Plan, type PlannedCase, planRun, resultPath } from './plan.ts';
import {
  type CaseResult,
  type DriverChoice,
  type Machine,
  mergeCase,
  type Skipped,
  titleOf,
  UsageError,
  writeResults,
} from './results.ts';
import { caseTable, describeRun } from './tables.ts';

/** A pass reports that its peers have started. */
interface PassBegun {
  readonly type: 'begun';
  readonly driver: DriverChoice;
  readonly machine: Machine;
  readonly isPinned: boolean;
  readonly skipped: Skipped[];
}

/** A pass reports what it measured of a case. */
interface PassCase {
  readonly type: 'case';
  /** The index of the case in the plan. */
  readonly at: number;
  /** True for the last part of the case. */
  readonly isLast: boolean;
  /** Undefined if nothing there can run it. */
  readonly result?: CaseResult;
  /** The stack of the error if the case failed. */
  readonly error?: string;
}

export type PassMessage = PassBegun | PassCase;
/** Passes of older checkouts also wait for permission, and report delays separately. */
type OlderMessage = { readonly type: 'ready' } | { readonly type: 'delays' };

const HERE = fileURLToPath(new URL('..', import.meta.url));
const PROGRAM = 'bench/programs/pass-child.ts';
/** The files that a checkout needs for its passes to run. */
const NEEDED = [PROGRAM, 'package.json', 'node_modules', 'dist/src/index.js'];

/** Measures a plan, pass by pass, and collects the results. */
class Run {
  readonly #name: string;
  readonly #args: readonly string[];
  readonly #plan: Plan;
  readonly #print: (text: string) => void;
  readonly #checkout: string | undefined;
  readonly #parts = new Map<string, CaseResult[]>();
  readonly #failed = new Set<string>();
  /** The cases of which a pass has reported, and those whose tables are printed. */
  readonly #heard = new Set<string>();
  readonly #printed = new Set<string>();
  #begun: PassBegun | undefined;
  #failedPasses = 0;

  /**
   * @param name distinguishes the two runs of `repeat`
   * @param print prints the tables
   * @param checkout another checkout to measure
   */
  constructor(
    name: string,
    args: readonly string[],
    print: (text: string) => void,
    checkout?: string,
  ) {
    this.#name = name;
    this.#args = args;
    this.#plan = planRun(args);
    this.#print = print;
    this.#checkout = checkout;
  }

  get plan(): Plan {
    return this.#plan;
  }

  /** Measures one pass. Returns false if it could not even begin, so that the next could not either. */
  async pass(index: number, signal: AbortSignal): Promise<boolean> {
    signal.throwIfAborted();
    const { passes } = this.#plan;
    const checkout = this.#checkout;
    const child: ChildProcess = fork(
      join(checkout ?? HERE, PROGRAM),
      [`${index}`, `${passes}`, this.#name, ...this.#args, ...this.#timeLeft()],
      // Advanced, because JSON has no NaN, the median of no samples.
      { serialization: 'advanced', ...(checkout !== undefined && inCheckout(checkout)) },
    );
    // By the channel: a signal may have reached the child already.
    const stop = (): void => {
      if (child.connected) child.disconnect();
    };
    signal.addEventListener('abort', stop, { once: true });
    child.on('message', (message: PassMessage | OlderMessage) => {
      if (message.type === 'ready') child.send('go on');
      else if (message.type !== 'delays') this.#hear(message);
    });
    // Both: a message may arrive after the exit.
    const [[code, killer]] = (await Promise.all([
      once(child, 'exit'),
      once(child, 'disconnect'),
    ])) as [[number | null, string | null], unknown];
    signal.removeEventListener('abort', stop);
    signal.throwIfAborted();
    if (code !== 0) {
      console.error(`pass ${index + 1} of ${passes} ended by ${killer ?? `code ${code}`}`);
      this.#failedPasses += 1;
    }
    return this.#begun !== undefined;
  }

  /** Whether another pass could begin a case. */
  get hasTime(): boolean {
    const { within = Number.POSITIVE_INFINITY } = this.#plan;
    return this.#begun === undefined || process.uptime() < within;
  }

  /** Whether each case was measured in one pass at least. */
  get isComplete(): boolean {
    const isEmulated = this.#begun?.driver.emulated;
    return this.#plan.cases.every(
      (each) => this.#heard.has(keyOf(each)) || (each.needsGpu && isEmulated),
    );
  }

  /** The argument that says how long a pass has that begins now, if the run is limited. */
  #timeLeft(): string[] {
    const { within } = this.#plan;
    if (within === undefined) return [];
    // The last one counts.
    return [`--within=${Math.max(0.01, within - process.uptime())}`];
  }

  /** Prints how many cases failed. Returns true if none did, and all passes ended well. */
  succeeded(): boolean {
    const failed = this.#failed.size;
    if (failed > 0) console.error(`${failed} of ${this.#plan.cases.length} cases failed`);
    return failed + this.#failedPasses === 0;
  }

  /** Writes the result file. Returns false if there are no results. */
  write(path: string, isComplete: boolean): boolean {
    if (!this.#begun) return false;
    const { driver, machine, isPinned, skipped } = this.#begun;
    const { quick, rounds, passes, cases } = this.#plan;
    writeResults(path, {
      version: 6,
      machine,
      driver,
      quick,
      rounds,
      passes,
      isPinned,
      isComplete,
      unit: 'ns',
      cases: cases.flatMap((each) => this.#resultOf(keyOf(each)) ?? []),
      skipped: [...skipped],
    });
    console.log(`\nwritten${isComplete ? '' : ', incomplete'}: ${path}`);
    return true;
  }

  #hear(message: PassMessage): void {
    if (message.type === 'begun') {
      if (!this.#begun) this.#print(describeRun(message, this.#plan).join('\n'));
      this.#begun ??= message;
      return;
    }
    const { at, result, error, isLast } = message;
    // The key, because another checkout may have other cases in another order.
    const key = keyOf(result ?? (this.#plan.cases[at] as PlannedCase));
    this.#heard.add(key);
    if (error !== undefined) this.#failed.add(key);
    if (result) this.#parts.set(key, [...(this.#parts.get(key) ?? []), result]);
    if (isLast) this.#printCase(key);
  }

  /** Prints the tables of the cases that the last pass had no time for. */
  printRest(): void {
    for (const key of this.#heard) if (!this.#printed.has(key)) this.#printCase(key);
  }

  #printCase(key: string): void {
    if (!this.#begun) return;
    this.#printed.add(key);
    const merged = this.#resultOf(key);
    if (merged) {
      const { driver, machine } = this.#begun;
      const aims = driver.emulated ? [] : readAims();
      const title = `${titleOf(merged)}: ${merged.what}`;
      this.#print(`\n${title}\n\n${caseTable(merged, { machine, driver, aims })}`);
    } else if (!this.#failed.has(key)) this.#print(`\nskipped: ${key}: nothing here can run it`);
  }

  #resultOf(key: string): CaseResult | undefined {
    const parts = this.#parts.get(key);
    return parts && mergeCase(parts);
  }
}

/** Starts a program with the loader, the settings and the commit of another checkout. */
function inCheckout(folder: string): { cwd: string; env: NodeJS.ProcessEnv } {
  const { CUFFI_COMMIT: _here, ...env } = process.env;
  // A folder inside a clone would report the commit of that clone.
  const isClone = existsSync(join(folder, '.git'));
  return { cwd: folder, env: isClone ? env : { ...env, CUFFI_COMMIT: 'unknown' } };
}

/** `run`: returns 1 if a case failed. An interrupted run writes what it has measured. */
export async function run(args: readonly string[]): Promise<number> {
  const measured = new Run('', args, console.log);
  const { passes, json } = measured.plan;
  using interrupted = interruption();
  const begin = performance.now();
  let isComplete = false;
  {
    using _ = savedAtExit(() => {
      console.error(`measured in ${duration((performance.now() - begin) * 1e6)}`);
      if (json !== undefined) measured.write(json, isComplete);
    });
    for (let index = 0; index < passes && measured.hasTime; index += 1)
      if (!(await measured.pass(index, interrupted.signal))) return 1;
    measured.printRest();
    isComplete = measured.isComplete;
  }
  return measured.succeeded() && isComplete ? 0 : 1;
}

/**
 * `repeat A B`: the passes of two runs take turns, so that a slow drift of the machine affects both.
 * Returns 1 if a case failed or the two runs do not agree.
 */
export async function repeat(args: readonly string[]): Promise<number> {
  const { folder, rest } = takeBefore(args);
  const [pathA, pathB] = rest.slice(0, 2).map((path) => {
    if (path.endsWith('.json')) return resultPath(path);
    throw new UsageError('repeat takes two result files (.json) first');
  });
  if (pathA === undefined || pathB === undefined || pathA === pathB)
    throw new UsageError('repeat takes two different result files');
  const given = rest.slice(2);
  const silent = (): void => {};
  const [printA, printB] = folder === undefined ? [console.log, silent] : [silent, console.log];
  const a = { path: pathA, run: new Run('A', given, printA, folder) };
  const b = { path: pathB, run: new Run('B', given, printB) };
  if (a.run.plan.json !== undefined || a.run.plan.within !== undefined)
    throw new UsageError('repeat takes no --json and no --within');
  using interrupted = interruption();
  let isComplete = false;
  let areWritten = false;
  try {
    using _ = savedAtExit(() => {
      areWritten = [a, b].map(({ path, run: of }) => of.write(path, isComplete)).every(Boolean);
    });
    for (let index = 0; index < a.run.plan.passes; index += 1)
      // Each run is first in every other pass.
      for (const { run: of } of index % 2 === 0 ? [a, b] : [b, a])
        if (!(await of.pass(index, interrupted.signal))) return 1;
    isComplete = true;
  } catch (error) {
    if (!(error instanceof Interrupted)) throw error;
    console.error(`bench: ${error.message}`);
    if (!areWritten) return INTERRUPTED;
  }
  const succeeded = [a, b].map(({ run: of }) => of.succeeded()).every(Boolean);
  console.log('');
  const agree = folder === undefined ? compareFiles(pathA, pathB) : compareWithBefore(pathA, pathB);
  if (!isComplete) return INTERRUPTED;
  return succeeded && agree ? 0 : 1;
}

/** Removes `--before FOLDER` from the arguments. @throws UsageError if it is not a built checkout */
function takeBefore(args: readonly string[]): { folder: string | undefined; rest: string[] } {
  const at = args.indexOf('--before');
  if (at < 0) return { folder: undefined, rest: [...args] };
  const folder = args[at + 1];
  if (folder === undefined || folder.startsWith('--'))
    throw new UsageError('--before takes the folder of another built checkout');
  const missing = NEEDED.find((file) => !existsSync(join(folder, file)));
  if (missing !== undefined)
    throw new UsageError(
      `${folder} is not a built checkout of cuffi: it has no ${missing}. Run npm ci there`,
    );
  return { folder: resolve(folder), rest: args.filter((_, i) => i !== at && i !== at + 1) };
}
