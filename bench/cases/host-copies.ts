import type { DeviceBuffer } from 'cuffi';
import { requirePattern, writePattern } from '../bytes.ts';
import type { Contestant } from '../measure.ts';

export type Direction = 'toDevice' | 'toHost';

/** How a copy is made. */
export type Way = (buffer: DeviceBuffer, host: Uint8Array) => unknown;

const MARK_BYTE_LENGTH = 8;
/** Small copies are mostly JavaScript. */
const WARM_UP_MS = 100;
const LARGEST_TO_WARM_UP = 1 << 20;

/**
 * Copies between one array and one buffer. What arrives is compared: all of it once, and after each
 * turn the beginning, the middle and the end, which every turn writes anew.
 */
export class HostCopies {
  readonly #direction: Direction;
  readonly #buffer: DeviceBuffer;
  readonly #host: Uint8Array;
  #turns = 0;

  private constructor(direction: Direction, buffer: DeviceBuffer, host: Uint8Array) {
    this.#direction = direction;
    this.#buffer = buffer;
    this.#host = host;
  }

  /** @throws Error where a whole copy there and back brings other bytes */
  static async open(
    direction: Direction,
    buffer: DeviceBuffer,
    host: Uint8Array,
  ): Promise<HostCopies> {
    const copies = new HostCopies(direction, buffer, host);
    writePattern(host);
    await buffer.copyFrom(host);
    host.fill(0);
    await buffer.copyToHost(host);
    requirePattern(host, 'copyFrom and copyToHost');
    return copies;
  }

  /** A contestant that waits for each copy before the next one. */
  contestant(name: string, way: Way): Contestant {
    return {
      name,
      warmUpMs: this.#host.byteLength > LARGEST_TO_WARM_UP ? 0 : WARM_UP_MS,
      run: async (calls) => {
        this.#turns += 1;
        const mark = this.#turns % 256;
        this.#mark(mark);
        const start = process.hrtime.bigint();
        for (let call = 0; call < calls; call += 1) {
          const copied = way(this.#buffer, this.#host);
          // The blocking one pays for no promise.
          if (copied instanceof Promise) await copied;
        }
        const end = process.hrtime.bigint();
        this.#requireMark(mark, name);
        return Number(end - start);
      },
    };
  }

  get #places(): number[] {
    const { byteLength } = this.#host;
    return [0, byteLength / 2, byteLength - MARK_BYTE_LENGTH];
  }

  #mark(value: number): void {
    for (const at of this.#places) {
      const end = at + MARK_BYTE_LENGTH;
      if (this.#direction === 'toDevice') this.#host.fill(value, at, end);
      else
        this.#buffer.subarray(at, end).copyFromSync(new Uint8Array(MARK_BYTE_LENGTH).fill(value));
    }
  }

  #requireMark(value: number, name: string): void {
    for (const at of this.#places) {
      const end = at + MARK_BYTE_LENGTH;
      const seen =
        this.#direction === 'toDevice'
          ? this.#buffer.subarray(at, end).copyToHostSync()
          : this.#host.subarray(at, end);
      if (seen.some((byte) => byte !== value))
        throw new Error(`${name}: ${seen.join(', ')} at byte ${at}, where ${value} was sent`);
    }
  }
}
