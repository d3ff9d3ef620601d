import { IpcError } from '../errors.ts';
import { NUMBERS, type NumberType } from './descriptor-fields.ts';

/** The bytes of a descriptor of another process: nothing is read beyond them, or out of bounds. */
export class DescriptorReader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes =
      bytes instanceof Buffer
        ? bytes
        : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Where the next part begins. */
  get at(): number {
    return this.#at;
  }

  get left(): number {
    return this.#bytes.byteLength - this.#at;
  }

  /** What was read since a place. */
  since(begin: number): Buffer {
    return this.#bytes.subarray(begin, this.#at);
  }

  /** The next bytes, a character each, which are not read by that; fewer at the end. */
  ahead(byteLength: number): string {
    return this.#bytes.toString('latin1', this.#at, this.#at + byteLength);
  }

  /** What was looked at is read. */
  skip(byteLength: number): void {
    this.#take(byteLength);
  }

  /** A number below `count`. */
  uint8(count: number, name: string): number {
    const value = this.#bytes[this.#take(1)] as number;
    if (value >= count) throw malformed(`${name}: ${value} is not below ${count}`);
    return value;
  }

  uint32(): number {
    const at = this.#take(4);
    const bytes = this.#bytes;
    return (
      ((bytes[at] as number) |
        ((bytes[at + 1] as number) << 8) |
        ((bytes[at + 2] as number) << 16) |
        ((bytes[at + 3] as number) << 24)) >>>
      0
    );
  }

  number(type: NumberType, name: string): number {
    const [least, most] = NUMBERS[type];
    const low = this.uint32();
    const value = most === 0xffff_ffff ? low : low + (this.uint32() | 0) * 2 ** 32;
    // What is beyond 2^53 may be rounded, and stays beyond.
    if (value < least || value > most)
      throw malformed(`${name}: ${value} is not from ${least} to ${most}`);
    return value;
  }

  numbers(type: NumberType, count: number, name: string): number[] {
    const values: number[] = [];
    for (let i = 0; i < count; i++) values.push(this.number(type, name));
    return values;
  }

  text(encoding: 'base64' | 'hex' | 'latin1', byteLength: number): string {
    const at = this.#take(byteLength);
    return this.#bytes.toString(encoding, at, at + byteLength);
  }

  #take(byteLength: number): number {
    const at = this.#at;
    if (byteLength > this.left) throw malformed('they end too soon');
    this.#at = at + byteLength;
    return at;
  }
}

/** Why bytes are no descriptor. */
export const malformed = (why: string): IpcError =>
  new IpcError(`these bytes are no descriptor of cuffi: ${why}`, undefined, 'no-descriptor');
