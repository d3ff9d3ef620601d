/** What a way to move bytes to another process is: each is one file of this folder. */
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';
import type { HandOverChildren } from '../programs/hand-over-children.ts';

/** One way. */
export interface Way {
  /** As result files name it. */
  readonly name: string;
  /** Prepares what its rounds need, untimed. */
  open(opening: Opening): OpenWay | Promise<OpenWay>;
}

/** What a way is opened with. */
export interface Opening {
  readonly driver: DriverChoice;
  /** How long the buffer is. */
  readonly byteLength: number;
  readonly children: HandOverChildren;
}

/** A way that is ready: its part in the turns of a case. */
export interface OpenWay extends Omit<Contestant, 'name'> {
  /** Frees what it prepared. */
  close(): void | Promise<void>;
}
