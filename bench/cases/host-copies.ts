import type { DeviceBuffer } from 'cuffi';
import { requirePattern, writePattern } from '../bytes.ts';
import type { Contestant } from '../measure.ts';

export type Direction = 'toDevice' | 'toHost';

/**
 * Clears one side, has the other copied there once more, and compares all of it.
 *
 * @param copy copies the whole of it
 * @throws Error where other bytes arrive
 */
export async function requireCopied(
  direction: Direction,
  buffer: DeviceBuffer,
  host: Uint8Array,
  what: string,
  copy: () => unknown,
): Promise<void> {
  writePattern(host);
  if (direction === 'toDevice') {
    buffer.fill(0);
    buffer.context.synchronizeSync();
    await copy();
    buffer.copyToHostSync(host.fill(0));
  } else {
    buffer.copyFromSync(host);
    host.fill(0);
    await copy();
  }
  requirePattern(host, what);
}

/** How a copy is made. */
export type Way = (buffer: DeviceBuffer, host: Uint8Array) => unknown;

const MARK_BYTE_LENGTH = 8;
/** Small copies are mostly JavaScript. */
const WARM_UP_MS = 100;
const LARGEST_TO_WARM_UP = 1 << 20;

/**
 * Copies between one array and one buffer. What arrives is compared: after each turn the beginning, the
 * middle and the end, which every turn writes anew, and all of it after the rounds.
 */
export class HostCopies {
  readonly #direction: Direction;
  readonly #buffer: DeviceBuffer;
  readonly #host: Uint8Array;
  readonly #ways = new Map<string, Way>();
  #turns = 0;

  private constructor(direction: Direction, buffer: DeviceBuffer, host: Uint8Array) {
    this.#direction = direction;
    this.#buffer = buffer;
    this.#host = host;
  }

  /** Touches all pages of both. */
  static async open(
    direction: Direction,
    buffer: DeviceBuffer,
    host: Uint8Array,
  ): Promise<HostCopies> {
    const copies = new HostCopies(direction, buffer, host);
    writePattern(host);
    await buffer.copyFrom(host);
    return copies;
  }

  /** Compares a whole copy by each of the ways that took part. @throws Error where it is not right */
  async verify(): Promise<void> {
    for (const [name, way] of this.#ways)
      await requireCopied(this.#direction, this.#buffer, this.#host, name, () =>
        way(this.#buffer, this.#host),
      );
  }

  /** A contestant that waits for each copy before the next one. */
  contestant(name: string, way: Way): Contestant {
    this.#ways.set(name, way);
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
