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
    let value = 0;
    for (let shift = 0; shift < 28; shift += 7) {
      const byte = this.uint8();
      value |= (byte & 0x7f) << shift;
      if (byte > 0x7f) continue;
      if (value * byteLength > this.left)
        throw new IpcError(`${value} are announced where ${this.left} bytes are left`);
      return value;
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

  /** So many bytes as they are: a view. */
  view(byteLength: number): Buffer {
    const from = this.#take(byteLength);
    return this.#buffer.subarray(from, from + byteLength);
  }

  /** A copy, aligned for every kind of array. */
  bytes(): ArrayBuffer {
    const length = this.length();
    const from = this.#take(length);
    const copy = new ArrayBuffer(length);
    new Uint8Array(copy).set(this.#bytes.subarray(from, from + length));
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
