/** Runs one case and compares its contestants. */
import type { Aim, Case } from './cases/case.ts';
import type { DriverChoice } from './driver.ts';
import { type Contestant, measure, type Samples } from './measure.ts';
import type { Skipped } from './peers/peer.ts';
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
  /** How many bytes a call allocates or moves, where that is what it does. */
  readonly byteLength: number | undefined;
  /** 1e9 bytes a second of each contestant, where bytes are moved. */
  readonly gigabytesPerSecond: readonly number[] | undefined;
  readonly contestants: readonly Samples[];
  readonly ratios: readonly Ratio[];
  /** Programs that run, but cannot do this. */
  readonly skipped: readonly Skipped[];
}

/** Measures a case with all who take part in it. */
export async function runCase(
  measured: Case,
  { rounds, driver, peers }: { rounds: number; driver: DriverChoice; peers: Peers | undefined },
): Promise<CaseResult> {
  const { name, variant, what, calls, byteLength, aims } = measured;
  const open = await measured.open(driver);
  try {
    const { contestants: others, skipped } = await findPeers(measured, peers);
    const samples = await measure([...open.contestants, ...others], {
      rounds: Math.min(rounds, measured.rounds ?? rounds),
      calls,
    });
    return {
      name,
      variant,
      what,
      callsPerBatch: calls,
      byteLength,
      gigabytesPerSecond:
        measured.isCopy && byteLength
          ? samples.map(({ median }) => byteLength / median)
          : undefined,
      contestants: samples,
      // The emulated driver's times are no times of a GPU: nothing is judged by them.
      ratios: compare(samples, aims, !driver.emulated),
      skipped,
    };
  } finally {
    await open.close();
  }
}

/** The programs' part in a case; who does not run at all was told of before. */
async function findPeers(
  { peers: batches, byteLength = 0 }: Case,
  peers: Peers | undefined,
): Promise<{ contestants: Contestant[]; skipped: Skipped[] }> {
  const contestants: Contestant[] = [];
  const skipped: Skipped[] = [];
  for (const { peer: peerName, batch, name = peerName } of batches) {
    const peer = peers?.running.find((running) => running.name === peerName);
    if (!peer) continue;
    const reason = await peer.lacks(batch, byteLength);
    if (reason !== undefined) skipped.push({ name, reason });
    else contestants.push({ name, run: (calls) => peer.run(batch, calls, byteLength) });
  }
  return { contestants, skipped };
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
