/**
 * One pass of a run: `pass-child.ts INDEX OF NAME ARGUMENTS`, name and arguments being the run's. It measures
 * its part of each case, and tells its parent of it; how far it is goes to stderr.
 */
import { once } from 'node:events';
import { DELAYS } from '../budget.ts';
import type { Case } from '../cases/case.ts';
import { titleOf } from '../compare.ts';
import { Cpus } from '../cpus.ts';
import { measureDelays } from '../delays.ts';
import { chooseDriver, type DriverChoice } from '../driver.ts';
import { INTERRUPTED, Interrupted, interruption } from '../interrupt.ts';
import { describeMachine } from '../machine.ts';
import { LAPPED, LAPS, mostPasses, type Pass, partOf, within } from '../passes.ts';
import { type Peers, startPeers } from '../peers/start.ts';
import { type RunOptions, runCase } from '../run.ts';
import { type Selection, selectRun } from '../selection.ts';
import { HandOverChildren } from './hand-over-children.ts';
import type { PassMessage, PassReady } from './pass-messages.ts';

const [index = '', of = '', name = '', ...args] = process.argv.slice(2);
const pass: Pass = { index: Number(index), of: Number(of) };
const which = pass.of > 1 ? `pass ${pass.index + 1} of ${pass.of}` : '';
const told = [name && `run ${name},`, which].map((part) => part && `${part} `).join('');

/** Resolves when it is on its way: nothing is lost by an exit. */
const tell = (message: PassMessage | PassReady): Promise<unknown> =>
  new Promise((resolve) => process.send?.(message, undefined, undefined, resolve));

/** Resolves when it is this pass's turn. */
async function mayGoOn(signal: AbortSignal): Promise<void> {
  const told = once(process, 'message', { signal });
  await Promise.all([told, tell({ type: 'ready' })]);
}

async function measureAll(selection: Selection): Promise<void> {
  const driver = chooseDriver();
  const machine = describeMachine(driver);
  using interrupted = interruption();
  const { signal } = interrupted;
  const laps = lapsOf(selection, driver);
  const names = new Set(
    laps.flat().flatMap(({ measured }) => measured.peers.map(({ peer }) => peer)),
  );
  const children = new HandOverChildren(driver);
  let peers: Peers | undefined;
  let cpus: Cpus | undefined;
  try {
    await mayGoOn(signal);
    if (names.size > 0) peers = await startPeers(driver, names, signal);
    cpus = driver.emulated ? undefined : Cpus.choose();
    const isPinned = cpus !== undefined;
    await tell({ type: 'begun', driver, machine, isPinned, skipped: peers?.skipped ?? [] });
    const { rounds, quick } = selection;
    await runAll(laps, { driver, peers, cpus, children, rounds, quick, signal });
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

/** The cases of this pass in laps, each with its place in the run and its part; the last has the rest. */
function lapsOf({ cases, rounds, quick }: Selection, { emulated }: DriverChoice) {
  const placed = cases.map((each, at) => ({ ...each, at }));
  const partsOf = (inLaps: boolean, lap: Pass) =>
    placed.flatMap(({ suite, measured, at }) => {
      if (LAPPED.has(suite) !== inLaps || (measured.needsGpu && emulated)) return [];
      const part = partOf(within(pass, lap), mostPasses(measured, rounds));
      return part ? [{ suite, measured, at, part }] : [];
    });
  const of = quick ? 1 : LAPS;
  const lapped = Array.from({ length: of }, (_, index) => partsOf(true, { index, of }));
  return [...lapped, partsOf(false, { index: 0, of: 1 })].filter(({ length }) => length > 0);
}

/** Runs the cases in turn, with a wait between two laps. */
async function runAll(laps: ReturnType<typeof lapsOf>, options: RunOptions): Promise<void> {
  const total = laps.flat().length;
  let count = 0;
  for (const lap of laps) {
    if (count > 0) await mayGoOn(options.signal);
    for (const next of lap) {
      count += 1;
      const seconds = process.uptime().toFixed(0);
      const title = `${next.suite}: ${nameOf(next.measured)}`;
      console.error(`${told}[${count}/${total}, ${seconds} s] ${title}`);
      await runOne(next, options);
    }
  }
}

const nameOf = ({ name, variant }: Case): string => titleOf({ name, variant: variant ?? null });

/** A case that fails is told of: the others of a long run are worth having. */
async function runOne(
  { suite, measured, at, part }: ReturnType<typeof lapsOf>[number][number],
  options: RunOptions,
): Promise<void> {
  const { signal, children } = options;
  signal.throwIfAborted();
  const isLast = part.index === part.of - 1;
  try {
    const result = await runCase(suite, measured, part, options);
    await tell({ type: 'case', at, isLast, ...(result && { result }) });
  } catch (error) {
    signal.throwIfAborted();
    const { stack = String(error) } = error as Error;
    console.error(`failed: ${nameOf(measured)}: ${stack}`);
    await tell({ type: 'case', at, isLast, error: stack });
    // The process beside it may be what failed.
    await children.end();
  }
}

try {
  await measureAll(selectRun(args));
} catch (error) {
  console.error(`bench: ${told}${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = error instanceof Interrupted ? INTERRUPTED : 1;
}
