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
  /** The most rounds that it takes part in, where it takes long. Default: all. */
  readonly rounds?: number;
  /**
   * For how long it runs untimed first, in milliseconds, where V8 compiles what it does: a process
   * has too few rounds to get there by them. Default 0.
   */
  readonly warmUpMs?: number;
  /** Does it `calls` times; answers how many nanoseconds that took. */
  run(calls: number): number | Promise<number>;
}

/** How much time a case has. */
export interface Allowance {
  /** The most rounds. */
  readonly rounds: number;
  /** Calls in a turn. */
  readonly calls: number;
  /** After so long no further round begins, unless there are too few. */
  readonly budgetMs: number;
  /** How many rounds there are at least, whatever they take. */
  readonly minRounds: number;
  /** Ends it between two turns. */
  readonly signal?: AbortSignal;
  /** Called once, when all have run and the first round that counts begins. */
  readonly warm?: () => void;
}

/** Rounds whose times are thrown away: caches fill, clocks rise. */
const WARM_UP_ROUNDS = 3;
/** The part of the time after which the first of them is enough. */
const WARM_UP_PART = 0.2;
/** What V8 needs at least for a loop of calls. */
const IN_PROCESS_WARM_UP_MS = 100;

/** Measures the contestants in turns; each round begins with another one. */
export async function measure(
  contestants: readonly Contestant[],
  { rounds, calls, budgetMs, minRounds, signal, warm }: Allowance,
): Promise<Samples[]> {
  const times = contestants.map((): number[] => []);
  for (const contestant of contestants) await warmUp(contestant, calls, signal);
  // Of those alone that take part in all rounds: they are not to pay for the others.
  let spentMs = 0;
  for (let round = -WARM_UP_ROUNDS; round < rounds; round += 1) {
    const isFirst = round === -WARM_UP_ROUNDS;
    if (round < 0 && !isFirst && spentMs > WARM_UP_PART * budgetMs) continue;
    if (round === 0) {
      spentMs = 0;
      warm?.();
    }
    if (round >= minRounds && spentMs > budgetMs) break;
    for (let turn = 0; turn < contestants.length; turn += 1) {
      signal?.throwIfAborted();
      const at = (round + WARM_UP_ROUNDS + turn) % contestants.length;
      const contestant = contestants[at] as Contestant;
      const { calls: own = calls, rounds: most = rounds } = contestant;
      if (most === 0 || (round < 0 ? most < rounds && !isFirst : round >= most)) continue;
      const begun = performance.now();
      const ns = await contestant.run(own);
      if (most >= rounds) spentMs += performance.now() - begun;
      if (round >= 0) times[at]?.push(ns / own);
    }
  }
  return contestants.map(({ name }, at) => summarize(name, times[at] ?? []));
}

async function warmUp(
  contestant: Contestant,
  calls: number,
  signal: AbortSignal | undefined,
): Promise<void> {
  const { calls: own = calls, rounds = 1, warmUpMs = 0 } = contestant;
  if (rounds === 0) return;
  for (const end = performance.now() + warmUpMs; performance.now() < end; ) {
    signal?.throwIfAborted();
    await contestant.run(own);
  }
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
  run(calls) {
    // Untimed, as after another contestant's turn the first calls are slower.
    loop(Math.floor(calls / 10));
    settle();
    const start = process.hrtime.bigint();
    loop(calls);
    const end = process.hrtime.bigint();
    settle();
    return Number(end - start);
  },
});
