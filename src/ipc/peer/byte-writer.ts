import { HEADER_BYTE_LENGTH, MAX_TAIL_BYTE_LENGTH, MAX_VALUE_BYTE_LENGTH } from './limits.ts';

const INITIAL_BYTE_LENGTH = 16 << 10;
const MAX_KEPT_BYTE_LENGTH = 1 << 20;
/** A call into C costs as much as about so many characters. */
const SHORT = 16;

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
    if (length > SHORT && Buffer.byteLength(text) !== length) return false;
    this.#reserve(length + 6);
    const before = this.#at;
    this.uint8(tag);
    this.length(length);
    if (length > SHORT) {
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
