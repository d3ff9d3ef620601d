/** The longest descriptor in bytes: of virtual memory in as many pieces as a message can carry. */
export const MAX_DESCRIPTOR_BYTE_LENGTH = 4096;

const scratch = Buffer.alloc(MAX_DESCRIPTOR_BYTE_LENGTH);

/** The parts of a descriptor as bytes, one behind the other; little-endian. */
export class DescriptorWriter {
  #at = 0;

  /** What was written, until another one writes. */
  get written(): Buffer {
    return scratch.subarray(0, this.#at);
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
