/** Runs one case and compares its contestants. */
import type { Aim, Case } from './cases/case.ts';
import type { DriverChoice } from './driver.ts';
import { type Contestant, measure, type Samples } from './measure.ts';
import type { Peers } from './peers/start.ts';

/** The first contestant's median as a multiple of another's. */
export interface Ratio {
  readonly versus: string;
  readonly ratio: number;
  /** The most that it may be; undefined where there is no aim. */
  readonly aim: number | undefined;
  /** Undefined without an aim, and where none is judged. */
  readonly met: boolean | undefined;
}

/** What a case came to; times in nanoseconds per call. */
export interface CaseResult {
  readonly name: string;
  readonly variant: string | undefined;
  readonly what: string;
  readonly callsPerBatch: number;
  readonly contestants: readonly Samples[];
  readonly ratios: readonly Ratio[];
}

/** Measures a case with all who take part in it. */
export async function runCase(
  measured: Case,
  { rounds, driver, peers }: { rounds: number; driver: DriverChoice; peers: Peers | undefined },
): Promise<CaseResult> {
  const { name, variant, what, calls, aims } = measured;
  const open = await measured.open(driver);
  try {
    const others = measured.withPeers ? (peers?.running ?? []) : [];
    const contestants: Contestant[] = [
      ...open.contestants,
      ...others.map((peer) => ({ name: peer.name, run: (n: number) => peer.run(name, n) })),
    ];
    const samples = await measure(contestants, { rounds, calls });
    // The emulated driver's times are no times of a GPU: nothing is judged by them.
    const ratios = compare(samples, aims, !driver.emulated);
    return { name, variant, what, callsPerBatch: calls, contestants: samples, ratios };
  } finally {
    await open.close();
  }
}

function compare(samples: readonly Samples[], aims: readonly Aim[], judge: boolean): Ratio[] {
  const [first, ...others] = samples;
  return others.map(({ name, median }) => {
    const ratio = (first?.median ?? Number.NaN) / median;
    const aim = aims.find(({ versus }) => versus === name)?.max;
    const met = judge && aim !== undefined ? ratio <= aim : undefined;
    return { versus: name, ratio, aim, met };
  });
}
