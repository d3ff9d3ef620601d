/** What a case is: data for the harness, and how to open what it measures. */
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';

/** The most that the median of the first contestant may be, as a multiple of another's. */
export interface Aim {
  readonly versus: string;
  readonly max: number;
}

/** One thing that is measured. */
export interface Case {
  readonly name: string;
  /** What tells it from the other cases of its name. */
  readonly variant?: string;
  /** What it measures, in a few words. */
  readonly what: string;
  /** How many calls a batch has. */
  readonly calls: number;
  /** Whether the C and the Python program have a batch of this name. */
  readonly withPeers: boolean;
  readonly aims: readonly Aim[];
  open(driver: DriverChoice): OpenCase | Promise<OpenCase>;
}

/** A case that is ready to be measured. */
export interface OpenCase {
  /** The first one is compared with each of the others. */
  readonly contestants: readonly Contestant[];
  close(): void | Promise<void>;
}
