/**
 * The timer: contestants take turns, round by round, so that what changes during a run (clocks,
 * neighbours, temperature) touches all of them alike.
 *
 * Not tinybench: it finishes one task before it begins the next, looks at the clock around every
 * call (which takes as long as half the calls here), and gives no turn to another process.
 */

/** One way of doing what a case measures. */
export interface Contestant {
  readonly name: string;
  /** How many calls its batches have, where one takes long. Default: as many as the others'. */
  readonly calls?: number;
  /** The most rounds that it takes part in, where it takes long. Default: all. */
  readonly rounds?: number;
  /** Does it `calls` times; answers how many nanoseconds that took. */
  run(calls: number): number | Promise<number>;
}

/** The nanoseconds per call of one contestant: one number a round, and what they come to. */
export interface Samples {
  readonly name: string;
  readonly median: number;
  readonly min: number;
  readonly max: number;
  readonly lowerQuartile: number;
  readonly upperQuartile: number;
  readonly rounds: readonly number[];
}

/** Rounds whose times are thrown away: V8 compiles, caches fill, clocks rise. */
const WARM_UP_ROUNDS = 3;
/** As many for one that takes part in few rounds. */
const SHORT_WARM_UP_ROUNDS = 1;
/** After so long no further round begins, unless there are too few for a median. */
const BUDGET_MS = 5000;
const MIN_ROUNDS = 3;

/** Measures the contestants in turns; each round begins with another one. */
export async function measure(
  contestants: readonly Contestant[],
  { rounds, calls }: { readonly rounds: number; readonly calls: number },
): Promise<Samples[]> {
  const times = contestants.map((): number[] => []);
  // Of those alone that take part in all rounds: they are not to pay for the others.
  let spentMs = 0;
  for (let round = -WARM_UP_ROUNDS; round < rounds; round += 1) {
    if (round >= MIN_ROUNDS && spentMs > BUDGET_MS) break;
    for (let turn = 0; turn < contestants.length; turn += 1) {
      const at = (round + WARM_UP_ROUNDS + turn) % contestants.length;
      const contestant = contestants[at] as Contestant;
      const { calls: own = calls, rounds: most = rounds } = contestant;
      if (most < rounds && (round >= most || round < -SHORT_WARM_UP_ROUNDS)) continue;
      const begun = performance.now();
      const ns = await contestant.run(own);
      if (most >= rounds) spentMs += performance.now() - begun;
      if (round >= 0) times[at]?.push(ns / own);
    }
  }
  return contestants.map(({ name }, at) => summarize(name, times[at] ?? []));
}

/**
 * A contestant in this process. `loop` makes the calls, written out where it is made, so that V8
 * compiles each contestant's loop for itself; `settle` waits, untimed, for the work they queued.
 */
export const inProcess = (
  name: string,
  loop: (calls: number) => void,
  settle: () => void = () => {},
): Contestant => ({
  name,
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

function summarize(name: string, rounds: readonly number[]): Samples {
  const sorted = [...rounds].sort((a, b) => a - b);
  return {
    name,
    median: quantile(sorted, 0.5),
    min: quantile(sorted, 0),
    max: quantile(sorted, 1),
    lowerQuartile: quantile(sorted, 0.25),
    upperQuartile: quantile(sorted, 0.75),
    rounds,
  };
}

/** The value below which a fraction of them lies; between two of them in proportion. */
export function quantile(sorted: readonly number[], fraction: number): number {
  const position = (sorted.length - 1) * fraction;
  const below = sorted[Math.floor(position)] ?? Number.NaN;
  const above = sorted[Math.ceil(position)] ?? Number.NaN;
  return below + (above - below) * (position - Math.floor(position));
}
