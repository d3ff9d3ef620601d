import { aimsOf, DELAYS, delayAimOf, readBudget } from '../budget.ts';
import { measureDelays } from '../delays.ts';
import { chooseDriver } from '../driver.ts';
import { interruption } from '../interrupt.ts';
import { describeMachine } from '../machine.ts';
import { type Peers, startPeers } from '../peers/start.ts';
import { writeResults } from '../result-file.ts';
import type { CaseResult } from '../result-schema.ts';
import { runCase } from '../run.ts';
import {
  describeCase,
  describeDelays,
  describeDriver,
  describeLeftOut,
  describeRun,
  describeSkipped,
} from '../run-text.ts';
import { selectRun } from '../selection.ts';

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
  const cases: CaseResult[] = [];
  let failures = 0;
  try {
    if (names.size > 0) peers = await startPeers(driver, names, signal);
    for (const peer of peers?.skipped ?? []) console.log(describeSkipped(peer));
    for (const [at, { suite, measured }] of chosen.entries()) {
      signal.throwIfAborted();
      const { name, variant } = measured;
      const title = [name, variant].filter(Boolean).join(', ');
      console.error(`[${at + 1}/${chosen.length}] ${suite}: ${title}`);
      try {
        const result = await runCase(suite, measured, { driver, peers, rounds, quick, signal });
        cases.push(result);
        const aims = [...aimsOf(budget, { ...measured, suite }), ...(measured.aims ?? [])];
        console.log(`\n${describeCase(result, aims, driver).join('\n')}`);
      } catch (error) {
        signal.throwIfAborted();
        // The others of a long run are worth having.
        failures += 1;
        console.error(`failed: ${title}: ${(error as Error).stack}`);
      }
    }
  } catch (error) {
    // Whatever else failed then failed by it.
    signal.throwIfAborted();
    throw error;
  } finally {
    await peers?.close();
  }
  // Alone: the programs of other languages have ended.
  if (selection.delays) console.error(DELAYS);
  const delays = selection.delays ? await measureDelays(driver) : [];
  signal.throwIfAborted();
  if (selection.delays) {
    const aim = (name: string): number | undefined => delayAimOf(budget, name);
    console.log(`\n${describeDelays(delays, aim, driver).join('\n')}`);
  }
  if (failures > 0) console.error(`${failures} of ${chosen.length} cases failed`);
  const status = failures > 0 ? 1 : 0;
  if (json === undefined) return status;
  const skipped = [...(peers?.skipped ?? [])];
  const found = { driver, machine, quick, rounds, cases, delays, skipped };
  writeResults(json, { version: 2, unit: 'ns', ...found });
  console.log(`\nwritten: ${json}`);
  return status;
}
