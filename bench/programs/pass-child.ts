/**
 * One pass of a run: `pass-child.ts INDEX OF ARGUMENTS`, the arguments being the run's. It measures
 * its part of each case, and tells its parent of it; how far it is goes to stderr.
 */
import { DELAYS } from '../budget.ts';
import { titleOf } from '../compare.ts';
import { Cpus } from '../cpus.ts';
import { measureDelays } from '../delays.ts';
import { chooseDriver, type DriverChoice } from '../driver.ts';
import { INTERRUPTED, Interrupted, interruption } from '../interrupt.ts';
import { describeMachine } from '../machine.ts';
import { mostPasses, type Pass, partOf } from '../passes.ts';
import { type Peers, startPeers } from '../peers/start.ts';
import { type RunOptions, runCase } from '../run.ts';
import { type Selection, selectRun } from '../selection.ts';
import { HandOverChildren } from './hand-over-children.ts';
import type { PassMessage } from './pass-messages.ts';

const [index = '', of = '', ...args] = process.argv.slice(2);
const pass: Pass = { index: Number(index), of: Number(of) };
const told = pass.of > 1 ? `pass ${pass.index + 1} of ${pass.of} ` : '';

/** Resolves when it is on its way: nothing is lost by an exit. */
const tell = (message: PassMessage): Promise<unknown> =>
  new Promise((resolve) => process.send?.(message, undefined, undefined, resolve));

async function measureAll(selection: Selection): Promise<void> {
  const driver = chooseDriver();
  const machine = describeMachine(driver);
  using interrupted = interruption();
  const { signal } = interrupted;
  const chosen = casesOf(selection, driver);
  const names = new Set(chosen.flatMap(({ measured }) => measured.peers.map(({ peer }) => peer)));
  const children = new HandOverChildren(driver);
  let peers: Peers | undefined;
  let cpus: Cpus | undefined;
  try {
    if (names.size > 0) peers = await startPeers(driver, names, signal);
    cpus = driver.emulated ? undefined : Cpus.choose();
    const isPinned = cpus !== undefined;
    await tell({ type: 'begun', driver, machine, isPinned, skipped: peers?.skipped ?? [] });
    const { rounds, quick } = selection;
    await runAll(chosen, { driver, peers, cpus, children, rounds, quick, signal });
  } catch (error) {
    // Whatever else failed then failed by it.
    signal.throwIfAborted();
    throw error;
  } finally {
    await children.end();
    await peers?.close();
  }
  // What comes now takes threads.
  cpus?.arrange(DELAYS, []);
  if (selection.delays && pass.index === pass.of - 1) {
    console.error(`${told}${DELAYS}`);
    // Alone: the programs of other languages have ended.
    await tell({ type: 'delays', delays: await measureDelays(driver) });
    signal.throwIfAborted();
  }
}

/** Those of this pass, each with its place in the run and its part. */
const casesOf = ({ cases, rounds }: Selection, { emulated }: DriverChoice) =>
  cases.flatMap(({ suite, measured }, at) => {
    const part = partOf(pass, mostPasses(measured, rounds));
    return part && !(measured.needsGpu && emulated) ? [{ suite, measured, at, part }] : [];
  });

/** Runs the cases in turn. One that fails is told of: the others of a long run are worth having. */
async function runAll(chosen: ReturnType<typeof casesOf>, options: RunOptions): Promise<void> {
  const { signal, children } = options;
  for (const [count, { suite, measured, at, part }] of chosen.entries()) {
    signal.throwIfAborted();
    const title = titleOf({ name: measured.name, variant: measured.variant ?? null });
    const seconds = process.uptime().toFixed(0);
    console.error(`${told}[${count + 1}/${chosen.length}, ${seconds} s] ${suite}: ${title}`);
    try {
      const result = await runCase(suite, measured, part, options);
      await tell({ type: 'case', at, ...(result && { result }) });
    } catch (error) {
      signal.throwIfAborted();
      const { stack = String(error) } = error as Error;
      console.error(`failed: ${title}: ${stack}`);
      await tell({ type: 'case', at, error: stack });
      // The process beside it may be what failed.
      await children.end();
    }
  }
}

try {
  await measureAll(selectRun(args));
} catch (error) {
  console.error(`bench: ${told}${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = error instanceof Interrupted ? INTERRUPTED : 1;
}
