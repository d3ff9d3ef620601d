/**
 * The timer: contestants take turns, round by round, so that what changes during a run (clocks,
 * neighbours, temperature) touches all of them alike.
 *
 * Not tinybench: it finishes one task before it begins the next, looks at the clock around every
 * call (which takes as long as half the calls here), and gives no turn to another process.
 */

import { type Samples, summarize } from './statistics.ts';

/** One way of doing what a case measures. */
export interface Contestant {
  readonly name: string;
  /** How many calls its batches have, where one takes long. Default: as many as the others'. */
  readonly calls?: number;
  /** How many come before them, untimed. Default: as the others', of `calls` of its own a tenth. */
  readonly untimed?: number;
  /** The most rounds that it takes part in, where it takes long. Default: all. */
  readonly rounds?: number;
  /** Whether it has run before: with rounds of its own it then takes no part in untimed ones. */
  readonly hasRun?: boolean;
  /**
   * For how long it runs untimed first at least, in milliseconds, where V8 compiles what it does: a
   * process has too few rounds to get there by them. Default 0.
   */
  readonly warmUpMs?: number;
  /** And at most, while it still gets quicker. Default: `warmUpMs`. */
  readonly warmUpMostMs?: number;
  /**
   * Does it `calls` times, after `untimed` times of which nothing is said; answers how many
   * nanoseconds that took.
   */
  run(calls: number, untimed: number): number | Promise<number>;
}

/** How much time a case has. */
export interface Allowance {
  /** The most rounds. */
  readonly rounds: number;
  /** Calls in a turn. */
  readonly calls: number;
  /**
   * How many come before them: after other contestants' turns the first ones are slower. Default: a
   * tenth of them.
   */
  readonly untimed?: number;
  /** After so long no further round begins, unless there are too few. */
  readonly budgetMs: number;
  /** How many rounds there are at least, whatever they take. */
  readonly minRounds: number;
  /** Ends it between two turns. */
  readonly signal?: AbortSignal;
  /** Called before each round that counts: from 0, when all have run. */
  readonly beforeRound?: (round: number) => void;
}

/** Rounds whose times are thrown away: caches fill, clocks rise. */
const WARM_UP_ROUNDS = 3;
/** The part of the time after which the first of them is enough. */
const WARM_UP_PART = 0.1;
/** What V8 needs at least for a loop of calls. */
const IN_PROCESS_WARM_UP_MS = 100;
/** What must be gained by more of a warm-up, as a part of a batch. */
const WORTH_WARMING = 0.03;
/** How many batches a warm-up is judged by at least. */
const MIN_WARM_UP_BATCHES = 6;
/** For how long nothing must have been gained: between two steps of V8 it is as quick for a while. */
const SETTLED_MS = 150;

/** Measures the contestants in turns; each round begins with another one. */
export async function measure(
  contestants: readonly Contestant[],
  allowance: Allowance,
): Promise<Samples[]> {
  const { rounds, budgetMs, minRounds, signal, beforeRound } = allowance;
  const times = contestants.map((): number[] => []);
  for (const contestant of contestants) await warmUp(contestant, allowance);
  // Of those alone that take part in all rounds: they are not to pay for the others.
  let spentMs = 0;
  for (let round = -WARM_UP_ROUNDS; round < rounds; round += 1) {
    const isFirst = round === -WARM_UP_ROUNDS;
    if (round < 0 && !isFirst && spentMs > WARM_UP_PART * budgetMs) continue;
    if (round === 0) spentMs = 0;
    if (round >= minRounds && spentMs > budgetMs) break;
    if (round >= 0) beforeRound?.(round);
    for (let turn = 0; turn < contestants.length; turn += 1) {
      signal?.throwIfAborted();
      const at = (round + WARM_UP_ROUNDS + turn) % contestants.length;
      const contestant = contestants[at] as Contestant;
      const { rounds: most = rounds, hasRun = false } = contestant;
      if (most === 0) continue;
      if (round < 0 ? most < rounds && (hasRun || !isFirst) : round >= most) continue;
      const begun = performance.now();
      const ns = await runBatch(contestant, allowance);
      if (most >= rounds) spentMs += performance.now() - begun;
      if (round >= 0) times[at]?.push(ns);
    }
  }
  return contestants.map(({ name }, at) => summarize(name, times[at] ?? []));
}

/** One turn: how many nanoseconds a call took. */
async function runBatch(contestant: Contestant, allowance: Allowance): Promise<number> {
  const { calls = allowance.calls } = contestant;
  const others = contestant.calls === undefined ? allowance.untimed : undefined;
  const { untimed = others ?? Math.floor(calls / 10) } = contestant;
  return (await contestant.run(calls, untimed)) / calls;
}

async function warmUp(contestant: Contestant, allowance: Allowance): Promise<void> {
  const { rounds = 1, warmUpMs = 0, warmUpMostMs = warmUpMs } = contestant;
  if (rounds === 0) return;
  const begun = performance.now();
  const batches: number[] = [];
  let gainedMs = 0;
  for (let spentMs = 0; spentMs < warmUpMostMs; spentMs = performance.now() - begun) {
    if (!isWarm(batches)) gainedMs = spentMs;
    else if (spentMs >= warmUpMs && spentMs - gainedMs >= SETTLED_MS) return;
    allowance.signal?.throwIfAborted();
    batches.push(await runBatch(contestant, allowance));
  }
}

/** Whether the last third of the batches was hardly quicker than the third before. */
export function isWarm(batches: readonly number[]): boolean {
  if (batches.length < MIN_WARM_UP_BATCHES) return false;
  const third = Math.floor(batches.length / 3);
  const before = summarize('', batches.slice(-2 * third, -third));
  const now = summarize('', batches.slice(-third));
  return now.median > (1 - WORTH_WARMING) * before.median;
}

/**
 * A contestant in this process. `loop` makes the calls, written out where it is made, so that V8
 * compiles each contestant's loop for itself; `settle` waits, untimed, for the work they queued.
 */
export const inProcess = (
  name: string,
  loop: (calls: number) => void,
  settle: () => void = () => {},
  warmUpMs: number = IN_PROCESS_WARM_UP_MS,
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
