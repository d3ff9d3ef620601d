import { IpcError } from '../../errors.ts';

/** A call into C costs as much as about so many characters. */
const SHORT = 12;

/** One number, seen as what it may be: short messages need no Buffer for it. */
const word = new Uint8Array(8);
const words = new Int32Array(word.buffer);
const doubles = new Float64Array(word.buffer);

/** Bytes of another process, read one part after the other: never beyond their end. */
export class ByteReader {
  readonly #bytes: Uint8Array;
  #made: Buffer | undefined;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  /** How many bytes were read. */
  get at(): number {
    return this.#at;
  }

  /** Begins again. */
  rewind(): void {
    this.#at = 0;
  }

  /** A reader at the same place of a copy of the first bytes. */
  copied(byteLength: number): ByteReader {
    const copy = new ByteReader(new Uint8Array(this.#bytes.subarray(0, byteLength)));
    copy.#at = this.#at;
    return copy;
  }

  get left(): number {
    return this.#bytes.byteLength - this.#at;
  }

  uint8(): number {
    return this.#bytes[this.#take(1)] as number;
  }

  int32(): number {
    const from = this.#take(4);
    for (let i = 0; i < 4; i++) word[i] = this.#bytes[from + i] as number;
    return words[0] as number;
  }

  float64(): number {
    const from = this.#take(8);
    for (let i = 0; i < 8; i++) word[i] = this.#bytes[from + i] as number;
    return doubles[0] as number;
  }

  bigint64(): bigint {
    return this.#buffer.readBigInt64LE(this.#take(8));
  }

  /** How many things follow, each of `byteLength` bytes at least. */
  length(byteLength = 1): number {
    const first = this.uint8();
    const value = first > 0x7f ? this.#longLength(first & 0x7f) : first;
    if (value * byteLength > this.left)
      throw new IpcError(`${value} are announced where ${this.left} bytes are left`);
    return value;
  }

  #longLength(first: number): number {
    let value = first;
    for (let shift = 7; shift < 28; shift += 7) {
      const byte = this.uint8();
      value |= (byte & 0x7f) << shift;
      if (byte <= 0x7f) return value;
    }
    throw new IpcError('a length is too large');
  }

  latin1(): string {
    const length = this.length();
    const from = this.#take(length);
    if (length > SHORT) return this.#buffer.toString('latin1', from, from + length);
    let text = '';
    for (let i = from; i < from + length; i++)
      text += String.fromCharCode(this.#bytes[i] as number);
    return text;
  }

  utf16(): string {
    const length = this.length();
    if (length % 2 !== 0)
      throw new IpcError(`a string of ${length} bytes ends in half a character`);
    const from = this.#take(length);
    return this.#buffer.toString('utf16le', from, from + length);
  }

  /** Goes past so many bytes. */
  skip(byteLength: number): void {
    this.#take(byteLength);
  }

  /** So many hexadecimal digits: a view; undefined where they are anything else, or none. */
  digits(count: number): Buffer | undefined {
    const digits = this.view(count);
    for (const byte of digits) {
      const isDigit = (byte >= 0x30 && byte <= 0x39) || (byte >= 0x61 && byte <= 0x66);
      if (!isDigit) return undefined;
    }
    return count > 0 ? digits : undefined;
  }

  /** So many bytes as they are: a view. */
  view(byteLength: number): Buffer {
    const from = this.#take(byteLength);
    return this.#buffer.subarray(from, from + byteLength);
  }

  /** A copy of so many bytes, aligned for every kind of array. */
  bytes(byteLength: number): ArrayBuffer {
    const from = this.#take(byteLength);
    const copy = new ArrayBuffer(byteLength);
    new Uint8Array(copy).set(this.#bytes.subarray(from, from + byteLength));
    return copy;
  }

  /** The bytes with Node's ways to read them: short messages need none. */
  get #buffer(): Buffer {
    const bytes = this.#bytes;
    this.#made ??= Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    return this.#made;
  }

  #take(byteLength: number): number {
    const from = this.#at;
    if (byteLength > this.left) throw new IpcError('it ends in the middle of a value');
    this.#at = from + byteLength;
    return from;
  }
}
