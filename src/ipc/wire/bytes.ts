import { IpcError } from '../../errors.ts';
import { HEADER_BYTE_LENGTH, MAX_CONTROL_BYTE_LENGTH, MAX_VALUE_BYTE_LENGTH } from './limits.ts';

/** A call into C costs as much as about so many characters. */
const MAX_INLINE_READ = 12;

/** One number, seen as what it may be: short messages need no Buffer for it. */
const scratch = new Uint8Array(8);
const scratchInt32 = new Int32Array(scratch.buffer);
const scratchFloat64 = new Float64Array(scratch.buffer);

/** Bytes of another process, read one part after the other: never beyond their end. */
export class ByteReader {
  readonly #bytes: Uint8Array;
  #cachedBuffer: Buffer | undefined;
  #offset = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  /** How many bytes were read. */
  get offset(): number {
    return this.#offset;
  }

  /** Begins again. */
  rewind(): void {
    this.#offset = 0;
  }

  /** A reader at the same place of a copy of the first bytes. */
  copyOfFirst(byteLength: number): ByteReader {
    const copy = new ByteReader(new Uint8Array(this.#bytes.subarray(0, byteLength)));
    copy.#offset = this.#offset;
    return copy;
  }

  get remaining(): number {
    return this.#bytes.byteLength - this.#offset;
  }

  uint8(): number {
    return this.#bytes[this.#take(1)] as number;
  }

  int32(): number {
    const from = this.#take(4);
    for (let i = 0; i < 4; i++) scratch[i] = this.#bytes[from + i] as number;
    return scratchInt32[0] as number;
  }

  float64(): number {
    const from = this.#take(8);
    for (let i = 0; i < 8; i++) scratch[i] = this.#bytes[from + i] as number;
    return scratchFloat64[0] as number;
  }

  bigint64(): bigint {
    return this.#buffer.readBigInt64LE(this.#take(8));
  }

  /** How many things follow, each of `byteLength` bytes at least. */
  length(byteLength = 1): number {
    const first = this.uint8();
    const value = first > 0x7f ? this.#longLength(first & 0x7f) : first;
    if (value * byteLength > this.remaining)
      throw new IpcError(`${value} are announced where ${this.remaining} bytes are left`);
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
    if (length > MAX_INLINE_READ) return this.#buffer.toString('latin1', from, from + length);
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
  hexDigits(count: number): Buffer | undefined {
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
    this.#cachedBuffer ??= Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    return this.#cachedBuffer;
  }

  #take(byteLength: number): number {
    const from = this.#offset;
    if (byteLength > this.remaining) throw new IpcError('it ends in the middle of a value');
    this.#offset = from + byteLength;
    return from;
  }
}

const INITIAL_BYTE_LENGTH = 16 << 10;
const MAX_REUSED_BYTE_LENGTH = 1 << 20;
/** A call into C costs as much as about so many characters. */
const MAX_INLINE_WRITE = 16;

let reusable: ByteWriter | undefined;

/** Bytes that grow as they are written, with room for a packet's header before them. */
export class ByteWriter {
  #bytes: Buffer = Buffer.allocUnsafeSlow(INITIAL_BYTE_LENGTH);
  #view = new DataView(this.#bytes.buffer);
  #offset = HEADER_BYTE_LENGTH;
  #limit = HEADER_BYTE_LENGTH + MAX_VALUE_BYTE_LENGTH;

  /** Calls `use` with an empty writer; what it wrote is gone after. */
  static use<T>(use: (writer: ByteWriter) => T): T {
    // A getter in a value may send another one meanwhile.
    const writer = reusable ?? new ByteWriter();
    reusable = undefined;
    writer.#offset = HEADER_BYTE_LENGTH;
    writer.#limit = HEADER_BYTE_LENGTH + MAX_VALUE_BYTE_LENGTH;
    try {
      return use(writer);
    } finally {
      if (writer.#bytes.byteLength <= MAX_REUSED_BYTE_LENGTH) reusable = writer;
    }
  }

  /** The value is written: what comes now goes behind it, and has room of its own. */
  endValue(): void {
    this.#limit += MAX_CONTROL_BYTE_LENGTH;
  }

  /** Where the next byte goes. */
  get offset(): number {
    return this.#offset;
  }

  /** Writes a byte over one that was written. */
  rewrite(at: number, value: number): void {
    this.#bytes[at] = value;
  }

  /** What was written, behind the room for the header. */
  get written(): Buffer {
    return this.#bytes.subarray(0, this.#offset);
  }

  uint8(value: number): void {
    this.#reserve(1);
    this.#bytes[this.#offset++] = value;
  }

  int32(value: number): void {
    this.#reserve(4);
    this.#view.setInt32(this.#offset, value, true);
    this.#offset += 4;
  }

  float64(value: number): void {
    this.#reserve(8);
    this.#view.setFloat64(this.#offset, value, true);
    this.#offset += 8;
  }

  bigint64(value: bigint): void {
    this.#reserve(8);
    this.#view.setBigInt64(this.#offset, value, true);
    this.#offset += 8;
  }

  /** A count or length below 2^31: seven bits a byte, the lowest first. */
  length(value: number): void {
    this.#reserve(5);
    let rest = value;
    while (rest > 0x7f) {
      this.#bytes[this.#offset++] = (rest & 0x7f) | 0x80;
      rest >>>= 7;
    }
    this.#bytes[this.#offset++] = rest;
  }

  /** Writes the characters if all are ASCII; answers whether it did. The length goes before. */
  ascii(tag: number, text: string): boolean {
    const { length } = text;
    if (length > MAX_INLINE_WRITE && Buffer.byteLength(text) !== length) return false;
    this.#reserve(length + 6);
    const before = this.#offset;
    this.uint8(tag);
    this.length(length);
    if (length > MAX_INLINE_WRITE) {
      this.#offset += this.#bytes.write(text, this.#offset, length, 'latin1');
      return true;
    }
    for (let i = 0; i < length; i++) {
      const code = text.charCodeAt(i);
      if (code > 0x7f) {
        this.#offset = before;
        return false;
      }
      this.#bytes[this.#offset++] = code;
    }
    return true;
  }

  utf16(text: string): void {
    this.length(text.length * 2);
    this.#reserve(text.length * 2);
    this.#offset += this.#bytes.write(text, this.#offset, text.length * 2, 'utf16le');
  }

  /** The bytes that digits stand for. */
  hex(digits: string): void {
    const byteLength = digits.length / 2;
    this.#reserve(byteLength);
    this.#offset += this.#bytes.write(digits, this.#offset, byteLength, 'hex');
  }

  bytes(bytes: Uint8Array): void {
    this.#reserve(bytes.byteLength);
    this.#bytes.set(bytes, this.#offset);
    this.#offset += bytes.byteLength;
  }

  #reserve(byteLength: number): void {
    const needed = this.#offset + byteLength;
    if (needed <= this.#bytes.byteLength) return;
    if (needed > this.#limit)
      throw new RangeError(
        `a value may have ${MAX_VALUE_BYTE_LENGTH} bytes, and this one has more: send large data ` +
          'as a DeviceBuffer, or in parts',
      );
    const grown = Buffer.allocUnsafeSlow(
      Math.min(this.#limit, Math.max(needed, 2 * this.#bytes.byteLength)),
    );
    grown.set(this.#bytes.subarray(0, this.#offset));
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer);
  }
}
