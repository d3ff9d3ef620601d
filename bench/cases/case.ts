/** A case: data for the harness, and a function that opens what is measured. */
import type { Contestant } from '../measure.ts';
import type { PeerName } from '../peers/peers.ts';
import type { CaseResult, DriverChoice } from '../results.ts';
import type { Children } from '../ways/children.ts';

/** The contestants of this process: the public API, and `cuffi/ffi` alone. */
export const PUBLIC = 'cuffi';
export const RAW = 'raw ffi';

/** What a program in another language does in a case. */
export interface PeerBatch {
  readonly peer: PeerName;
  /** Its name in that program. */
  readonly batch: string;
  /** The name of the contestant. Default: the peer's. */
  readonly name?: string;
  /** True if it does not call the driver. Default false. */
  readonly needsNoGpu?: boolean;
}

/** One thing that is measured. Times and sizes are in the units of the result file. */
export interface Case {
  readonly name: string;
  /** Distinguishes cases of the same name. */
  readonly variant?: string;
  readonly what: string;
  /** Calls in a batch. */
  readonly calls: number;
  /** Untimed calls before a batch. Default: a tenth. */
  readonly untimed?: number;
  /** The most rounds over all passes. Default: those of the run. */
  readonly rounds?: number;
  /** The time of all passes together, in milliseconds. */
  readonly budgetMs?: number;
  readonly byteLength?: number;
  /** Default false. */
  readonly isCopy?: boolean;
  /** Default: the host's. */
  readonly clock?: CaseResult['clock'];
  readonly limit?: NonNullable<CaseResult['limit']>;
  readonly count?: NonNullable<CaseResult['count']>;
  /** True if it takes long without a GPU and says nothing then. Default false. */
  readonly needsGpu?: boolean;
  /** True if it runs only with `--large`. Default false. */
  readonly isLarge?: boolean;
  /** True if it runs once, in the first pass. Default false. */
  readonly isOnce?: boolean;
  readonly peers: readonly PeerBatch[];
  open(driver: DriverChoice, children: Children): OpenCase | Promise<OpenCase>;
}

/** A case that is ready to be measured. */
export interface OpenCase {
  /** The first one is compared with the others. Empty if nothing here can be measured. */
  readonly contestants: readonly Contestant[];
  /** Checks, after the last round, what the contestants did. @throws Error if that is wrong */
  verify?(): void | Promise<void>;
  close(): void | Promise<void>;
}

/** What a message to another process and back takes without cuffi, Node and the driver. */
export const messageFloors: readonly PeerBatch[] = ['socket', 'eventfd', 'futex', 'spinning'].map(
  (way) => ({ peer: 'C', batch: `message.${way}`, name: `C, ${way}`, needsNoGpu: true }),
);

/** A batch that has the same name in several programs. */
export const inPeers = (batch: string, ...peers: readonly PeerName[]): PeerBatch[] =>
  peers.map((peer) => ({ peer, batch }));

/** Contestants check the statuses of a whole batch with one call. @throws Error */
export function requireSuccess(succeeded: boolean, call: string): void {
  if (!succeeded) throw new Error(`${call} failed while it was measured`);
}
