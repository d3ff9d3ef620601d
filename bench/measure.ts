/**
 * The timer. The contestants of a case take turns, round by round, so that whatever changes during a
 * run (clocks, neighbours, temperature) affects all of them.
 *
 * tinybench does not fit: it finishes one task before it starts the next, reads the clock around
 * every call (which costs half a call here), and cannot give a turn to another process.
 */
import { type Samples, summarize } from './results.ts';

/** One way to do what a case measures. */
export interface Contestant {
  readonly name: string;
  /** Calls in a batch. Default: those of the case. */
  readonly calls?: number;
  /** Untimed calls before a batch. Default: those of the case, or a tenth of its own `calls`. */
  readonly untimed?: number;
  /** The most rounds of a slow contestant, over all passes. Default: all. */
  readonly rounds?: number;
  /** True if it ran before; with `rounds` of its own it skips the untimed rounds. */
  readonly hasRun?: boolean;
  /** It runs untimed for at least so long, because V8 compiles hot code only. Default 0. */
  readonly warmUpMs?: number;
  /** It runs untimed for at most so long, while it still becomes faster. Default: `warmUpMs`. */
  readonly warmUpMostMs?: number;
  /**
   * Makes `untimed` calls, then `calls` timed ones.
   *
   * @returns nanoseconds of the timed calls together, or a list of samples
   */
  run(
    calls: number,
    untimed: number,
  ): number | readonly number[] | Promise<number | readonly number[]>;
}

/** The time of a case. */
export interface Allowance {
  /** Calls in a batch, which is one contestant's part of a round. */
  readonly calls: number;
  /** Untimed calls before a batch. Default: a tenth of `calls`. */
  readonly untimed?: number;
  /** The most rounds. */
  readonly rounds: number;
  /** No further round begins after this time, unless there are fewer than `minRounds`. */
  readonly budgetMs: number;
  readonly minRounds: number;
  /** Aborting ends the measurement between two batches. */
  readonly signal?: AbortSignal;
  /** Called before each timed round, from 0. */
  readonly beforeRound?: (round: number) => void;
}

/** Untimed rounds before the first: caches fill, clocks rise. */
const UNTIMED_ROUNDS = 3;
/** After this part of the budget one untimed round is enough. */
const UNTIMED_PART = 0.1;

/** Measures the contestants; each round begins with another one. */
export async function measure(
  contestants: readonly Contestant[],
  allowance: Allowance,
): Promise<Samples[]> {
  const { rounds, budgetMs, minRounds, signal, beforeRound } = allowance;
  const samples = contestants.map((): number[] => []);
  for (const contestant of contestants) await warmUp(contestant, allowance);
  // Counts only contestants that take part in all rounds: others do not cost them rounds.
  let spentMs = 0;
  for (let round = -UNTIMED_ROUNDS; round < rounds; round += 1) {
    const isFirst = round === -UNTIMED_ROUNDS;
    if (round < 0 && !isFirst && spentMs > UNTIMED_PART * budgetMs) continue;
    if (round === 0) spentMs = 0;
    if (round >= minRounds && spentMs > budgetMs) break;
    if (round >= 0) beforeRound?.(round);
    for (let turn = 0; turn < contestants.length; turn += 1) {
      signal?.throwIfAborted();
      const at = (round + UNTIMED_ROUNDS + turn) % contestants.length;
      const contestant = contestants[at] as Contestant;
      const { rounds: most = rounds, hasRun = false } = contestant;
      if (round < 0 ? most < rounds && (hasRun || !isFirst) : round >= most) continue;
      const begun = performance.now();
      const measured = await runBatch(contestant, allowance);
      if (most >= rounds) spentMs += performance.now() - begun;
      if (round >= 0) samples[at]?.push(...measured);
    }
  }
  return contestants.map(({ name }, at) => summarize(name, samples[at] ?? []));
}

/** @returns nanoseconds per call: one sample, or those that the contestant took */
async function runBatch(contestant: Contestant, allowance: Allowance): Promise<readonly number[]> {
  const { calls = allowance.calls } = contestant;
  const ofCase = contestant.calls === undefined ? allowance.untimed : undefined;
  const { untimed = ofCase ?? Math.floor(calls / 10) } = contestant;
  const measured = await contestant.run(calls, untimed);
  return typeof measured === 'number' ? [measured / calls] : measured;
}

/** A warm-up is judged by at least so many batches. */
const MIN_WARM_UP_BATCHES = 6;
/** A warm-up goes on while it makes batches faster by more than this part. */
const WORTH_WARMING = 0.03;
/** It ends if it gained nothing for so long: V8 compiles in steps, with pauses between them. */
const SETTLED_MS = 150;

async function warmUp(contestant: Contestant, allowance: Allowance): Promise<void> {
  const { warmUpMs = 0, warmUpMostMs = warmUpMs } = contestant;
  const begun = performance.now();
  const batches: number[] = [];
  let gainedMs = 0;
  for (let spentMs = 0; spentMs < warmUpMostMs; spentMs = performance.now() - begun) {
    if (!isWarm(batches)) gainedMs = spentMs;
    else if (spentMs >= warmUpMs && spentMs - gainedMs >= SETTLED_MS) return;
    allowance.signal?.throwIfAborted();
    batches.push(...(await runBatch(contestant, allowance)));
  }
}

/** True if the last third of the batches was hardly faster than the third before. */
export function isWarm(batches: readonly number[]): boolean {
  if (batches.length < MIN_WARM_UP_BATCHES) return false;
  const third = Math.floor(batches.length / 3);
  const before = summarize('', batches.slice(-2 * third, -third));
  const now = summarize('', batches.slice(-third));
  return now.median > (1 - WORTH_WARMING) * before.median;
}

/** V8 needs at least so long for a loop of calls. */
const LOOP_WARM_UP_MS = 100;

/**
 * A contestant in this process.
 *
 * @param loop makes the calls; each caller writes its own loop, so that V8 compiles each separately
 * @param settle waits, untimed, for the work that the calls queued
 */
export const inProcess = (
  name: string,
  loop: (calls: number) => void,
  settle: () => void = () => {},
  warmUpMs: number = LOOP_WARM_UP_MS,
): Contestant => ({
  name,
  warmUpMs,
  run(calls, untimed) {
    loop(untimed);
    settle();
    const start = process.hrtime.bigint();
    loop(calls);
    const end = process.hrtime.bigint();
    settle();
    return Number(end - start);
  },
});
