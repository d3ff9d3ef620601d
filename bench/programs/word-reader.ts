import type { DeviceBuffer } from 'cuffi';
import { comparePatternIn } from './pattern.ts';

/** What a receiver reads of a buffer: its first word, or once, when it was told to, all of it. */
export class WordReader {
  readonly #word = new Uint32Array(1);
  #comparesNext = false;

  compareNext(): void {
    this.#comparesNext = true;
  }

  /** What is to be answered. */
  read(buffer: DeviceBuffer): number | string {
    if (this.#comparesNext) {
      this.#comparesNext = false;
      return comparePatternIn(buffer);
    }
    buffer.copyToHostSync(this.#word);
    return this.#word[0] as number;
  }
}
