/**
 * One pass of a run: `pass-child.ts INDEX OF NAME ARGUMENTS`, the last two being those of the run. It
 * measures its part of each case and reports to its parent, which may be the bench of another
 * checkout: the messages stay compatible. Progress goes to stderr.
 */

import { setImmediate as nextLoopIteration } from 'node:timers/promises';
import { Cpus } from '../cpus.ts';
import { INTERRUPTED, Interrupted, interruption } from '../interrupt.ts';
import { chooseDriver, describeMachine } from '../machine.ts';
import type { Contestant } from '../measure.ts';
import { measure } from '../measure.ts';
import { type Peers, startPeers } from '../peers/peers.ts';
import { type Plan, type PlannedCase, planRun } from '../plan.ts';
import { type CaseResult, type DriverChoice, type Skipped, titleOf } from '../results.ts';
import type { PassMessage } from '../run.ts';
import { Children } from '../ways/children.ts';

const [index = '', of = '', name = '', ...args] = process.argv.slice(2);
const pass = { index: Number(index), of: Number(of) };
const isFirstPass = pass.index === 0;
const prefix = `${name && `run ${name}, `}${pass.of > 1 ? `pass ${pass.index + 1} of ${pass.of} ` : ''}`;

/** The time of a case, over all passes. */
const BUDGET_MS = 1000;
/** Two in each of three passes. */
const MIN_ROUNDS = 6;
const QUICK_PART = 0.25;
const QUICK_MIN_ROUNDS = 3;

/** This pass's part of a number of rounds. The last pass has the most. */
const shareOf = (total: number): number =>
  Math.floor(((pass.index + 1) * total) / pass.of) - Math.floor((pass.index * total) / pass.of);

/** Resolves when the message is sent, so that an exit does not lose it. */
const tell = (message: PassMessage): Promise<unknown> =>
  new Promise((resolve) => process.send?.(message, undefined, undefined, resolve));

/** What all cases of the pass share. */
interface Shared {
  readonly driver: DriverChoice;
  readonly peers: Peers | undefined;
  readonly cpus: Cpus | undefined;
  readonly children: Children;
  readonly signal: AbortSignal;
}

async function measureAll(plan: Plan): Promise<void> {
  const driver = chooseDriver();
  const machine = describeMachine(driver);
  using interrupted = interruption();
  const { signal } = interrupted;
  const cases = plan.cases.filter(
    (each) => !(each.needsGpu && driver.emulated) && (isFirstPass || !each.isOnce),
  );
  const batches = cases.flatMap((each) => each.peers);
  const children = new Children(driver);
  let peers: Peers | undefined;
  try {
    if (batches.length > 0) peers = await startPeers(driver, batches, signal);
    const cpus = driver.emulated ? undefined : Cpus.choose();
    const isPinned = cpus !== undefined;
    await tell({ type: 'begun', driver, machine, isPinned, skipped: peers?.skipped ?? [] });
    const shared = { driver, peers, cpus, children, signal };
    for (const [at, each] of cases.entries()) {
      // A signal is only seen in the event loop, which short cases never reach.
      await nextLoopIteration();
      signal.throwIfAborted();
      if (process.uptime() > (plan.within ?? Number.POSITIVE_INFINITY)) break;
      const seconds = process.uptime().toFixed(0);
      const title = `${each.suite}: ${titleOf(each)}`;
      console.error(`${prefix}[${at + 1}/${cases.length}, ${seconds} s] ${title}`);
      await runOne(each, plan, shared);
    }
  } catch (error) {
    // An abort also causes other errors.
    signal.throwIfAborted();
    throw error;
  } finally {
    await children.end();
    await peers?.close();
  }
}

/** Reports a case that fails, so that the others are still measured. */
async function runOne(planned: PlannedCase, plan: Plan, shared: Shared): Promise<void> {
  const { signal, children } = shared;
  const at = plan.cases.indexOf(planned);
  const isLast = planned.isOnce || pass.index === pass.of - 1;
  try {
    const result = await runCase(planned, plan, shared);
    await tell({ type: 'case', at, isLast, ...(result && { result }) });
  } catch (error) {
    signal.throwIfAborted();
    const { stack = String(error) } = error as Error;
    console.error(`failed: ${titleOf(planned)}: ${stack}`);
    await tell({ type: 'case', at, isLast, error: stack });
    // A child may have caused it.
    await children.end();
  }
}

/** Measures this pass's part of a case; undefined if nothing here can run it. */
async function runCase(
  planned: PlannedCase,
  { rounds, quick }: Plan,
  { driver, peers, cpus, children, signal }: Shared,
): Promise<CaseResult | undefined> {
  const { suite, calls, untimed, budgetMs = BUDGET_MS, isOnce = false } = planned;
  const open = await planned.open(driver, children);
  try {
    const { contestants: others, skipped } = await findPeers(planned, peers);
    const contestants: readonly Contestant[] = [...open.contestants, ...others];
    if (contestants.length === 0) return undefined;
    const share = (total: number): number => (isOnce ? total : shareOf(total));
    const arrange = (): void => cpus?.arrange(suite, peers?.running.map(({ pid }) => pid) ?? []);
    arrange();
    const measured = await measure(
      contestants.map((one) => (one.rounds ? { ...one, rounds: share(one.rounds) } : one)),
      {
        calls,
        ...(untimed !== undefined && { untimed }),
        rounds: share(Math.min(rounds, planned.rounds ?? rounds)),
        budgetMs: (quick ? QUICK_PART * budgetMs : budgetMs) / (isOnce ? 1 : pass.of),
        minRounds: share(quick ? QUICK_MIN_ROUNDS : MIN_ROUNDS),
        signal,
        // Before the first round once more: some contestants started their child when they first ran.
        beforeRound: (round) => (round === 0 ? arrange() : cpus?.replaceSlow()),
      },
    );
    // Once: comparing a GiB takes longer than moving it.
    if (isFirstPass) {
      await open.verify?.();
      for (const { verify } of others) await verify();
    }
    return {
      suite,
      name: planned.name,
      variant: planned.variant ?? null,
      what: planned.what,
      callsPerBatch: calls,
      byteLength: planned.byteLength ?? null,
      isCopy: planned.isCopy ?? false,
      clock: planned.clock ?? 'host',
      limit: planned.limit ?? null,
      count: planned.count ?? null,
      contestants: measured,
      skipped,
    };
  } finally {
    await open.close();
  }
}

/** Returns the contestants of other programs, and those of them that cannot run the case. */
async function findPeers(
  { peers: batches, byteLength = 0 }: PlannedCase,
  peers: Peers | undefined,
): Promise<{ contestants: (Contestant & { verify(): Promise<void> })[]; skipped: Skipped[] }> {
  const contestants: (Contestant & { verify(): Promise<void> })[] = [];
  const skipped: Skipped[] = [];
  for (const { peer: peerName, batch, name: contestant = peerName } of batches) {
    const peer = peers?.running.find((running) => running.name === peerName);
    if (!peer) continue;
    const reason = await peer.lacks(batch, byteLength);
    if (reason !== undefined) skipped.push({ name: contestant, reason });
    else
      contestants.push({
        name: contestant,
        run: (calls, untimed) => peer.run({ batch, calls, untimed, byteLength }),
        verify: () => peer.verify(batch, byteLength),
      });
  }
  return { contestants, skipped };
}

try {
  await measureAll(planRun(args));
} catch (error) {
  console.error(`bench: ${prefix}${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = error instanceof Interrupted ? INTERRUPTED : 1;
}
