import { aimsOf, type BudgetedAim, DELAYS, delayAimOf, readBudget } from '../budget.ts';
import { titleOf } from '../compare.ts';
import { measureDelays } from '../delays.ts';
import { chooseDriver, type DriverChoice } from '../driver.ts';
import { interruption } from '../interrupt.ts';
import { describeMachine } from '../machine.ts';
import { type Peers, startPeers } from '../peers/start.ts';
import { writeResults } from '../result-file.ts';
import type { CaseResult, DelayResult } from '../result-schema.ts';
import { type RunOptions, runCase } from '../run.ts';
import {
  describeCase,
  describeDelays,
  describeDriver,
  describeLeftOut,
  describeRun,
  describeSkipped,
} from '../run-text.ts';
import { type Selection, selectRun } from '../selection.ts';

/** Measures: tables on stdout, how far it is on stderr; 1 where a case failed. */
export async function run(args: readonly string[]): Promise<number> {
  const selection = selectRun(args);
  const { rounds, quick, json } = selection;
  const budget = readBudget();
  const driver = chooseDriver();
  console.log(describeDriver(driver));
  const machine = describeMachine(driver);
  console.log(describeRun(machine, rounds).join('\n'));
  const chosen = selection.cases.filter(({ measured }) => !(measured.needsGpu && driver.emulated));
  if (chosen.length < selection.cases.length)
    console.log(describeLeftOut(selection.cases.length - chosen.length));

  using interrupted = interruption();
  const { signal } = interrupted;
  const names = new Set(chosen.flatMap(({ measured }) => measured.peers.map(({ peer }) => peer)));
  let peers: Peers | undefined;
  let measured: { readonly cases: CaseResult[]; readonly failed: number };
  try {
    if (names.size > 0) peers = await startPeers(driver, names, signal);
    for (const peer of peers?.skipped ?? []) console.log(describeSkipped(peer));
    measured = await runAll(chosen, budget, { driver, peers, rounds, quick, signal });
  } catch (error) {
    // Whatever else failed then failed by it.
    signal.throwIfAborted();
    throw error;
  } finally {
    await peers?.close();
  }
  const { cases, failed } = measured;
  if (failed > 0) console.error(`${failed} of ${chosen.length} cases failed`);
  // Alone: the programs of other languages have ended.
  const delays = selection.delays ? await runDelays(driver, budget) : [];
  signal.throwIfAborted();
  if (json !== undefined) {
    const skipped = [...(peers?.skipped ?? [])];
    const found = { driver, machine, quick, rounds, cases, delays, skipped };
    writeResults(json, { version: 2, unit: 'ns', ...found });
    console.log(`\nwritten: ${json}`);
  }
  return failed > 0 ? 1 : 0;
}

/** Runs the cases in turn. One that fails is told of: the others of a long run are worth having. */
async function runAll(
  chosen: Selection['cases'],
  budget: readonly BudgetedAim[],
  options: RunOptions,
): Promise<{ readonly cases: CaseResult[]; readonly failed: number }> {
  const { driver, signal } = options;
  const cases: CaseResult[] = [];
  let failed = 0;
  for (const [at, { suite, measured }] of chosen.entries()) {
    signal.throwIfAborted();
    const title = titleOf({ name: measured.name, variant: measured.variant ?? null });
    console.error(`[${at + 1}/${chosen.length}] ${suite}: ${title}`);
    try {
      const result = await runCase(suite, measured, options);
      if (!result) {
        console.log(`\nleft out: ${title}: nothing here can do it`);
        continue;
      }
      cases.push(result);
      const aims = [...aimsOf(budget, { ...measured, suite }), ...(measured.aims ?? [])];
      console.log(`\n${describeCase(result, aims, driver).join('\n')}`);
    } catch (error) {
      signal.throwIfAborted();
      failed += 1;
      console.error(`failed: ${title}: ${(error as Error).stack}`);
    }
  }
  return { cases, failed };
}

async function runDelays(
  driver: DriverChoice,
  budget: readonly BudgetedAim[],
): Promise<DelayResult[]> {
  console.error(DELAYS);
  const delays = await measureDelays(driver);
  const aim = (name: string): number | undefined => delayAimOf(budget, name);
  console.log(`\n${describeDelays(delays, aim, driver).join('\n')}`);
  return delays;
}
