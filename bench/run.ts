/** Runs one case. */
import type { Case } from './cases/case.ts';
import type { Cpus } from './cpus.ts';
import type { DriverChoice } from './driver.ts';
import { type Contestant, measure } from './measure.ts';
import { type Pass, shareOf } from './passes.ts';
import type { Skipped } from './peers/peer.ts';
import type { Peers } from './peers/start.ts';
import type { HandOverChildren } from './programs/hand-over-children.ts';
import type { CaseResult } from './result-schema.ts';

/** What is common to the cases of a pass. */
export interface RunOptions {
  readonly driver: DriverChoice;
  readonly peers: Peers | undefined;
  /** Where all that is measured runs; undefined where the system decides. */
  readonly cpus: Cpus | undefined;
  /** The other processes of hand-overs. */
  readonly children: HandOverChildren;
  /** The most, over all passes. */
  readonly rounds: number;
  readonly quick: boolean;
  readonly signal: AbortSignal;
}

/** What a case has of time, over all passes: the quick one enough for a median. */
const BUDGET_MS = 1500;
const MIN_ROUNDS = 5;
const QUICK_PART = 0.2;
const QUICK_MIN_ROUNDS = 3;

/** Measures a pass's part of a case with all who take part in it; undefined where nobody here can. */
export async function runCase(
  suite: string,
  measured: Case,
  pass: Pass,
  { driver, peers, cpus, children, rounds, quick, signal }: RunOptions,
): Promise<CaseResult | undefined> {
  const { name, variant, what, calls, untimed, byteLength, budgetMs = BUDGET_MS } = measured;
  const open = await measured.open(driver, children);
  try {
    const { contestants: others, skipped } = await findPeers(measured, peers);
    const all = [...open.contestants, ...others];
    if (all.length === 0) return undefined;
    // Once more when all have run: some start their other process then.
    const arrange = (): void => cpus?.arrange(suite, peers?.running.map(({ pid }) => pid) ?? []);
    arrange();
    const share = (total: number): number => shareOf(total, pass);
    const contestants = await measure(
      all.map((one) => (one.rounds === undefined ? one : { ...one, rounds: share(one.rounds) })),
      {
        calls,
        ...(untimed !== undefined && { untimed }),
        rounds: share(Math.min(rounds, measured.rounds ?? rounds)),
        budgetMs: (quick ? QUICK_PART * budgetMs : budgetMs) / pass.of,
        minRounds: share(quick ? QUICK_MIN_ROUNDS : MIN_ROUNDS),
        signal,
        beforeRound: (round) => (round === 0 ? arrange() : cpus?.keepQuick()),
      },
    );
    // Once: comparing all that the large ones moved takes longer than moving it.
    if (pass.index === pass.of - 1) {
      await open.verify?.();
      for (const { verify } of others) await verify();
    }
    return {
      suite,
      name,
      variant: variant ?? null,
      what,
      callsPerBatch: calls,
      byteLength: byteLength ?? null,
      isCopy: measured.isCopy ?? false,
      clock: measured.clock ?? 'host',
      limit: measured.limit ?? null,
      count: measured.count ?? null,
      contestants,
      skipped,
    };
  } finally {
    await open.close();
  }
}

/** A contestant that also looks, after the last round, whether what it did is right. */
interface PeerContestant extends Contestant {
  verify(): Promise<void>;
}

/** The programs' part in a case; who does not run at all was told of before. */
async function findPeers(
  { peers: batches, byteLength = 0 }: Case,
  peers: Peers | undefined,
): Promise<{ contestants: PeerContestant[]; skipped: Skipped[] }> {
  const contestants: PeerContestant[] = [];
  const skipped: Skipped[] = [];
  for (const { peer: peerName, batch, name = peerName } of batches) {
    const peer = peers?.running.find((running) => running.name === peerName);
    if (!peer) continue;
    const reason = await peer.lacks(batch, byteLength);
    if (reason !== undefined) skipped.push({ name, reason });
    else
      contestants.push({
        name,
        run: (calls, untimed) => peer.run({ batch, calls, untimed, byteLength }),
        verify: () => peer.verify(batch, byteLength),
      });
  }
  return { contestants, skipped };
}
