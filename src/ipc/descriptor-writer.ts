/** The longest descriptor in bytes: of virtual memory in as many pieces as a message can carry. */
export const MAX_DESCRIPTOR_BYTE_LENGTH = 4096;

const scratch = Buffer.alloc(MAX_DESCRIPTOR_BYTE_LENGTH);

/** The parts of a descriptor as bytes, one behind the other; little-endian. */
export class DescriptorWriter {
  #at: number;

  /** @param begin how many bytes are left free before what it writes */
  constructor(begin = 0) {
    this.#at = begin;
  }

  /** Where the next part begins. */
  get at(): number {
    return this.#at;
  }

  /** What was written from a place on, until another one writes. */
  writtenFrom(begin: number): Buffer {
    return scratch.subarray(begin, this.#at);
  }

  /** Takes what another one has written up to a place as its own. */
  goTo(end: number): void {
    this.#at = end;
  }

  uint8(value: number): void {
    scratch[this.#at++] = value;
  }

  uint32(value: number): void {
    const at = this.#at;
    scratch[at] = value;
    scratch[at + 1] = value >>> 8;
    scratch[at + 2] = value >>> 16;
    scratch[at + 3] = value >>> 24;
    this.#at = at + 4;
  }

  /** Eight bytes of a safe integer. */
  int53(value: number): void {
    const high = Math.floor(value / 2 ** 32);
    this.uint32(value - high * 2 ** 32);
    this.uint32(high);
  }

  text(text: string, encoding: 'base64' | 'hex' | 'latin1', byteLength: number): void {
    scratch.write(text, this.#at, byteLength, encoding);
    this.#at += byteLength;
  }

  bytes(bytes: Uint8Array): void {
    scratch.set(bytes, this.#at);
    this.#at += bytes.byteLength;
  }
}
