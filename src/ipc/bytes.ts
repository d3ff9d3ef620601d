/** The one reader and the one writer of bytes that travel: values, control blocks and descriptors. */

import { IpcError } from '../errors.ts';

/**
 * Up to about this many characters, a loop is faster than a native call. With both loops a message
 * of ten short names and values is written in 0.7 instead of 1.8 µs, and read in 1.4 instead of
 * 2.1 µs (`npm run bench -- hand-over --case connection.message`).
 */
const MAX_INLINE_READ = 12;

/** Scratch space for one number, so that short messages need no Buffer. */
const scratch = new Uint8Array(8);
const scratchInt32 = new Int32Array(scratch.buffer);
const scratchFloat64 = new Float64Array(scratch.buffer);

/** Reads the bytes of another process in order, and never beyond their end. */
export class ByteReader {
  readonly #bytes: Uint8Array;
  readonly #error: (why: string) => Error;
  #cachedBuffer: Buffer | undefined;
  #offset = 0;

  /** @param error makes the error for invalid bytes */
  constructor(bytes: Uint8Array, error = (why: string): Error => new IpcError(why)) {
    this.#bytes = bytes;
    this.#error = error;
  }

  /** How many bytes were read. */
  get offset(): number {
    return this.#offset;
  }

  /** Starts again from the first byte. */
  rewind(): void {
    this.#offset = 0;
  }

  /** Returns a reader of a copy of the first bytes, at the same offset. */
  copyOfFirst(byteLength: number): ByteReader {
    const copy = new ByteReader(new Uint8Array(this.#bytes.subarray(0, byteLength)), this.#error);
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

  uint32(): number {
    const from = this.#take(4);
    const bytes = this.#bytes;
    const high = (bytes[from + 3] as number) * 2 ** 24;
    return (
      high +
      ((bytes[from] as number) |
        ((bytes[from + 1] as number) << 8) |
        ((bytes[from + 2] as number) << 16))
    );
  }

  /** Reads a signed integer of eight bytes. An unsafe one may be rounded, but not to a safe one. */
  int64(): number {
    return this.uint32() + (this.uint32() | 0) * 2 ** 32;
  }

  float64(): number {
    const from = this.#take(8);
    for (let i = 0; i < 8; i++) scratch[i] = this.#bytes[from + i] as number;
    return scratchFloat64[0] as number;
  }

  bigint64(): bigint {
    return this.#buffer.readBigInt64LE(this.#take(8));
  }

  /** Reads a count of items that have at least `byteLength` bytes each. */
  length(byteLength = 1): number {
    const first = this.uint8();
    const value = first > 0x7f ? this.#longLength(first & 0x7f) : first;
    if (value * byteLength > this.remaining)
      throw this.#error(
        `a count of ${value} needs more than the ${this.remaining} bytes that are left`,
      );
    return value;
  }

  #longLength(first: number): number {
    let value = first;
    for (let shift = 7; shift < 28; shift += 7) {
      const byte = this.uint8();
      value |= (byte & 0x7f) << shift;
      if (byte <= 0x7f) return value;
    }
    throw this.#error('a length is too large');
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
    if (length % 2 !== 0) throw this.#error(`a string of ${length} bytes ends in half a character`);
    const from = this.#take(length);
    return this.#buffer.toString('utf16le', from, from + length);
  }

  /** Reads text that takes so many bytes. */
  text(encoding: 'base64' | 'hex' | 'latin1', byteLength: number): string {
    const from = this.#take(byteLength);
    return this.#buffer.toString(encoding, from, from + byteLength);
  }

  /** Skips so many bytes. */
  skip(byteLength: number): void {
    this.#take(byteLength);
  }

  /** Returns a view of hexadecimal digits. Undefined for zero digits or other characters. */
  hexDigits(count: number): Buffer | undefined {
    const digits = this.view(count);
    for (const byte of digits) {
      const isDigit = (byte >= 0x30 && byte <= 0x39) || (byte >= 0x61 && byte <= 0x66);
      if (!isDigit) return undefined;
    }
    return count > 0 ? digits : undefined;
  }

  /** Returns a view of the next bytes. */
  view(byteLength: number): Buffer {
    const from = this.#take(byteLength);
    return this.#buffer.subarray(from, from + byteLength);
  }

  /** Returns a view of the next bytes, which the next read begins with. */
  peek(byteLength: number): Buffer {
    const from = this.#take(byteLength);
    this.#offset = from;
    return this.#buffer.subarray(from, from + byteLength);
  }

  /** Returns a view of what was read since an offset. */
  since(offset: number): Buffer {
    return this.#buffer.subarray(offset, this.#offset);
  }

  /** Returns a copy of the next bytes, aligned for every typed array. */
  bytes(byteLength: number): ArrayBuffer {
    const from = this.#take(byteLength);
    const copy = new ArrayBuffer(byteLength);
    new Uint8Array(copy).set(this.#bytes.subarray(from, from + byteLength));
    return copy;
  }

  /** The bytes as a Buffer, which short messages do not need. */
  get #buffer(): Buffer {
    const bytes = this.#bytes;
    this.#cachedBuffer ??=
      bytes instanceof Buffer
        ? bytes
        : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    return this.#cachedBuffer;
  }

  #take(byteLength: number): number {
    const from = this.#offset;
    if (byteLength > this.remaining) throw this.#error('the bytes end in the middle of a value');
    this.#offset = from + byteLength;
    return from;
  }
}

const INITIAL_BYTE_LENGTH = 16 << 10;
const MAX_REUSED_BYTE_LENGTH = 1 << 20;
/** As {@link MAX_INLINE_READ}. */
const MAX_INLINE_WRITE = 16;

/** One for a value, and one for a descriptor in it. */
const MAX_IDLE_WRITERS = 2;
const idleWriters: ByteWriter[] = [];

/** A growing buffer. Its user may leave room in front, such as that of a frame header. */
export class ByteWriter {
  #bytes: Buffer = Buffer.allocUnsafeSlow(INITIAL_BYTE_LENGTH);
  #view = new DataView(this.#bytes.buffer);
  #offset = 0;
  /** Where writing must stop, and the error of what is too long. */
  #limit = Number.POSITIVE_INFINITY;
  #limitError: (() => Error) | undefined;

  /**
   * Calls `use` with a writer whose first byte goes to `begin`. The written bytes are only valid
   * during the call.
   */
  static use<T>(begin: number, use: (writer: ByteWriter) => T): T {
    // A getter in a value may send another value meanwhile.
    const writer = idleWriters.pop() ?? new ByteWriter();
    writer.#offset = begin;
    writer.#limit = Number.POSITIVE_INFINITY;
    try {
      return use(writer);
    } finally {
      if (
        writer.#bytes.byteLength <= MAX_REUSED_BYTE_LENGTH &&
        idleWriters.length < MAX_IDLE_WRITERS
      )
        idleWriters.push(writer);
    }
  }

  /** Allows so many further bytes. Above that, writing throws the error. */
  limit(byteLength: number, error?: () => Error): void {
    this.#limit = this.#offset + byteLength;
    this.#limitError = error;
  }

  /** Where the next byte goes. */
  get offset(): number {
    return this.#offset;
  }

  /** Overwrites a byte. */
  rewrite(at: number, value: number): void {
    this.#bytes[at] = value;
  }

  /** The written bytes, with the room in front. */
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

  uint32(value: number): void {
    this.#reserve(4);
    this.#view.setUint32(this.#offset, value, true);
    this.#offset += 4;
  }

  /** Writes a safe integer in eight bytes. */
  int64(value: number): void {
    const high = Math.floor(value / 2 ** 32);
    this.uint32(value - high * 2 ** 32);
    this.uint32(high);
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

  /** Writes a count or length below 2^31 as LEB128: seven bits a byte, the lowest first. */
  length(value: number): void {
    this.#reserve(5);
    let rest = value;
    while (rest > 0x7f) {
      this.#bytes[this.#offset++] = (rest & 0x7f) | 0x80;
      rest >>>= 7;
    }
    this.#bytes[this.#offset++] = rest;
  }

  /** Writes a tag, the length and the characters if all are ASCII. Returns whether it did. */
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

  /** Writes text that takes so many bytes. */
  text(text: string, encoding: 'base64' | 'hex' | 'latin1', byteLength: number): void {
    this.#reserve(byteLength);
    this.#bytes.write(text, this.#offset, byteLength, encoding);
    this.#offset += byteLength;
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
      throw this.#limitError?.() ?? new RangeError(`more than ${this.#limit} bytes were written`);
    const grown = Buffer.allocUnsafeSlow(
      Math.min(this.#limit, Math.max(needed, 2 * this.#bytes.byteLength)),
    );
    grown.set(this.#bytes.subarray(0, this.#offset));
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer);
  }
}
