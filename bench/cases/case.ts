/** What a case is: data for the harness, and how to open what it measures. */
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';
import type { HandOverChildren } from '../programs/hand-over-children.ts';

/** The most that the median of the first contestant may be, as a multiple of another's. */
export interface Aim {
  readonly versus: string;
  readonly max: number;
}

/**
 * Whose clock times are by: the host's monotonic one, or the GPU's, between two events of a stream
 * in which all that is between them waits until the last of it is queued.
 */
export type Clock = 'host' | 'gpu';

/** What of the machine limits how many bytes a second there are. */
export interface Limit {
  readonly by: 'link' | 'memory';
  /** How often each byte goes through it: of a copy on the device each is read and written. */
  readonly times: number;
}

/** The programs in other languages. */
export type PeerName = 'C' | 'ctypes' | 'cuda.bindings' | 'cuda.core' | 'cupy' | 'numba' | 'torch';

/** What a program in another language does of a case. */
export interface PeerBatch {
  readonly peer: PeerName;
  /** Its name there. */
  readonly batch: string;
  /** Its name here. Default: the peer's. */
  readonly name?: string;
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
  /** How many come before them, untimed. Default: a tenth. */
  readonly untimed?: number;
  /** The most rounds that it takes, where one takes long. Default: as many as all. */
  readonly rounds?: number;
  /** In how many passes it is at most, where opening it takes long. Default: in all. */
  readonly passes?: number;
  /** How long it may take, in milliseconds, where a round takes long. Default: as long as all. */
  readonly budgetMs?: number;
  /** How many bytes each call allocates or moves, where that is what it does. */
  readonly byteLength?: number;
  /** Whether the bytes are moved, so that there are so many a second. Default false. */
  readonly isCopy?: boolean;
  /** Default: the host's. */
  readonly clock?: Clock;
  /** Where the bytes a second are what it measures. */
  readonly limit?: Limit;
  /** Whether it is left out without a GPU, where it would take long and say nothing. Default false. */
  readonly needsGpu?: boolean;
  /** How many of what, where the cases of its name differ by a number. */
  readonly count?: { readonly of: string; readonly value: number };
  /** Whether it takes so much of a machine that it must be asked for. Default false. */
  readonly isLarge?: boolean;
  readonly peers: readonly PeerBatch[];
  /** Those beside what bench/budget.json says of it. */
  readonly aims?: readonly Aim[];
  open(driver: DriverChoice, children: HandOverChildren): OpenCase | Promise<OpenCase>;
}

/** A case that is ready to be measured. */
export interface OpenCase {
  /** The first one is compared with each of the others. */
  readonly contestants: readonly Contestant[];
  /**
   * Looks, after the last round, whether what the contestants did is right: that the bytes which they
   * were to move are where they belong.
   *
   * @throws Error where anything else is there
   */
  verify?(): void | Promise<void>;
  close(): void | Promise<void>;
}

/** A batch of the same name in several programs. */
export const inPeers = (batch: string, ...peers: readonly PeerName[]): PeerBatch[] =>
  peers.map((peer) => ({ peer, batch }));
