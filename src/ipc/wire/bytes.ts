import { IpcError } from '../../errors.ts';
import { HEADER_BYTE_LENGTH, MAX_TAIL_BYTE_LENGTH, MAX_VALUE_BYTE_LENGTH } from './limits.ts';

/** A call into C costs as much as about so many characters. */
const SHORT_READ = 12;

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
    if (length > SHORT_READ) return this.#buffer.toString('latin1', from, from + length);
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

const INITIAL_BYTE_LENGTH = 16 << 10;
const MAX_KEPT_BYTE_LENGTH = 1 << 20;
/** A call into C costs as much as about so many characters. */
const SHORT_WRITE = 16;

let spare: ByteWriter | undefined;

/** Bytes that grow as they are written, with room for a packet's header before them. */
export class ByteWriter {
  #bytes: Buffer = Buffer.allocUnsafeSlow(INITIAL_BYTE_LENGTH);
  #view = new DataView(this.#bytes.buffer);
  #at = HEADER_BYTE_LENGTH;
  #limit = HEADER_BYTE_LENGTH + MAX_VALUE_BYTE_LENGTH;

  /** Calls `use` with an empty writer; what it wrote is gone after. */
  static use<T>(use: (writer: ByteWriter) => T): T {
    // A getter in a value may send another one meanwhile.
    const writer = spare ?? new ByteWriter();
    spare = undefined;
    writer.#at = HEADER_BYTE_LENGTH;
    writer.#limit = HEADER_BYTE_LENGTH + MAX_VALUE_BYTE_LENGTH;
    try {
      return use(writer);
    } finally {
      if (writer.#bytes.byteLength <= MAX_KEPT_BYTE_LENGTH) spare = writer;
    }
  }

  /** The value is written: what comes now goes behind it, and has room of its own. */
  endValue(): void {
    this.#limit += MAX_TAIL_BYTE_LENGTH;
  }

  /** Where the next byte goes. */
  get at(): number {
    return this.#at;
  }

  /** Writes a byte over one that was written. */
  rewrite(at: number, value: number): void {
    this.#bytes[at] = value;
  }

  /** What was written, behind the room for the header. */
  get written(): Buffer {
    return this.#bytes.subarray(0, this.#at);
  }

  uint8(value: number): void {
    this.#reserve(1);
    this.#bytes[this.#at++] = value;
  }

  int32(value: number): void {
    this.#reserve(4);
    this.#view.setInt32(this.#at, value, true);
    this.#at += 4;
  }

  float64(value: number): void {
    this.#reserve(8);
    this.#view.setFloat64(this.#at, value, true);
    this.#at += 8;
  }

  bigint64(value: bigint): void {
    this.#reserve(8);
    this.#view.setBigInt64(this.#at, value, true);
    this.#at += 8;
  }

  /** A count or length below 2^31: seven bits a byte, the lowest first. */
  length(value: number): void {
    this.#reserve(5);
    let rest = value;
    while (rest > 0x7f) {
      this.#bytes[this.#at++] = (rest & 0x7f) | 0x80;
      rest >>>= 7;
    }
    this.#bytes[this.#at++] = rest;
  }

  /** Writes the characters if all are ASCII; answers whether it did. The length goes before. */
  ascii(tag: number, text: string): boolean {
    const { length } = text;
    if (length > SHORT_WRITE && Buffer.byteLength(text) !== length) return false;
    this.#reserve(length + 6);
    const before = this.#at;
    this.uint8(tag);
    this.length(length);
    if (length > SHORT_WRITE) {
      this.#at += this.#bytes.write(text, this.#at, length, 'latin1');
      return true;
    }
    for (let i = 0; i < length; i++) {
      const code = text.charCodeAt(i);
      if (code > 0x7f) {
        this.#at = before;
        return false;
      }
      this.#bytes[this.#at++] = code;
    }
    return true;
  }

  utf16(text: string): void {
    this.length(text.length * 2);
    this.#reserve(text.length * 2);
    this.#at += this.#bytes.write(text, this.#at, text.length * 2, 'utf16le');
  }

  /** The bytes that digits stand for. */
  hex(digits: string): void {
    const byteLength = digits.length / 2;
    this.#reserve(byteLength);
    this.#at += this.#bytes.write(digits, this.#at, byteLength, 'hex');
  }

  bytes(bytes: Uint8Array): void {
    this.#reserve(bytes.byteLength);
    this.#bytes.set(bytes, this.#at);
    this.#at += bytes.byteLength;
  }

  #reserve(byteLength: number): void {
    const needed = this.#at + byteLength;
    if (needed <= this.#bytes.byteLength) return;
    if (needed > this.#limit)
      throw new RangeError(
        `a value may have ${MAX_VALUE_BYTE_LENGTH} bytes, and this one has more: send large data ` +
          'as a DeviceBuffer, or in parts',
      );
    const grown = Buffer.allocUnsafeSlow(
      Math.min(this.#limit, Math.max(needed, 2 * this.#bytes.byteLength)),
    );
    grown.set(this.#bytes.subarray(0, this.#at));
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer);
  }
}
