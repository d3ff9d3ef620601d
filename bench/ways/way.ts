/** What a way to move bytes to another process is: each is one file of this folder. */
import type { DriverChoice } from '../driver.ts';
import type { Contestant } from '../measure.ts';
import type { CopyingChild } from '../programs/copying.ts';
import type { HandOverChild } from '../programs/hand-over.ts';

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
  /** The process that is handed buffers: the same one for all ways and sizes of a row. */
  child(): Promise<HandOverChild>;
  /** The process that is sent copies of so many bytes: the same one for all ways of a case. */
  copyingChild(): Promise<CopyingChild>;
}

/** A way that is ready: its part in the turns of a case. */
export interface OpenWay extends Omit<Contestant, 'name'> {
  /** Frees what it prepared. */
  close(): void | Promise<void>;
}
