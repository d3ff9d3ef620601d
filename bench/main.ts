/** The bench: what cuffi costs, as ratios to what is measured beside it in the same run. */
import { writeFileSync } from 'node:fs';
import { type DelayResult, measureDelays } from './delays.ts';
import { chooseDriver } from './driver.ts';
import { describeMachine } from './machine.ts';
import { type Options, parseOptions, USAGE, UsageError } from './options.ts';
import { startPeers } from './peers/start.ts';
import {
  describeCase,
  describeDelays,
  describeDriver,
  describeLeftOut,
  describeRun,
  describeSkipped,
} from './report.ts';
import { type CaseResult, runCase } from './run.ts';

/** What is unknown is there all the same, as null. */
const orNull = (_key: string, value: unknown): unknown => value ?? null;

async function main({ help, rounds, cases: asked, delays: isAsked, json }: Options): Promise<void> {
  if (help) {
    console.log(USAGE);
    return;
  }
  const driver = chooseDriver();
  console.log(describeDriver(driver));
  const machine = describeMachine(driver);
  console.log(describeRun(machine, rounds).join('\n'));
  const cases = asked.filter(({ needsGpu }) => !(needsGpu && driver.emulated));
  if (cases.length < asked.length) console.log(describeLeftOut(asked.length - cases.length));

  const results: CaseResult[] = [];
  const names = new Set(cases.flatMap(({ peers }) => peers.map(({ peer }) => peer)));
  const peers = names.size > 0 ? await startPeers(driver, names) : undefined;
  const skipped = peers?.skipped ?? [];
  for (const peer of skipped) console.log(describeSkipped(peer));
  try {
    for (const measured of cases) {
      const result = await runCase(measured, { rounds, driver, peers });
      results.push(result);
      console.log(`\n${describeCase(result).join('\n')}`);
    }
  } finally {
    await peers?.close();
  }
  // Alone: the programs of other languages have ended.
  const delays: DelayResult[] = isAsked ? await measureDelays(driver) : [];
  if (isAsked) console.log(`\n${describeDelays(delays).join('\n')}`);

  if (json === undefined) return;
  const file = { version: 1, driver, machine, rounds, unit: 'ns', cases: results, delays, skipped };
  writeFileSync(json, `${JSON.stringify(file, orNull, 2)}\n`);
  console.log(`\nwritten: ${json}`);
}

try {
  await main(parseOptions(process.argv.slice(2)));
} catch (error) {
  const usage = error instanceof UsageError;
  const message = error instanceof Error ? error.message : String(error);
  console.error(usage ? `bench: ${message}\n\n${USAGE}` : `bench: ${message}`);
  process.exitCode = usage ? 2 : 1;
}
