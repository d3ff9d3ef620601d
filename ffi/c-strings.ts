/** Zero-terminated strings in native memory, for C. */
import { addressOf } from './native.ts';
import type { Address } from './types.ts';

/** All strings that are not disposed of: addresses keep nothing alive. */
const keepalive = new Set<CStrings>();

/**
 * Zero-terminated UTF-8 strings, and an array of pointers to them (`char **`). Valid until disposed,
 * even while another thread reads them.
 *
 * @throws TypeError for a string that contains NUL, where C would end it
 */
export class CStrings implements Disposable {
  /** The address of the array of pointers. 0 if there are no strings. */
  readonly table: Address;
  readonly count: number;
  readonly #bytes: Uint8Array;

  constructor(strings: readonly string[]) {
    const encoded = strings.map((string) => {
      if (string.includes('\0')) throw new TypeError('a string for C must not have a zero in it');
      return Buffer.from(`${string}\0`);
    });
    const pointers = 8 * strings.length;
    const bytes = Buffer.alloc(encoded.reduce((sum, { length }) => sum + length, pointers));
    this.table = addressOf(bytes);
    this.count = strings.length;
    this.#bytes = bytes;
    let offset = pointers;
    for (const [n, string] of encoded.entries()) {
      bytes.writeBigUInt64LE(BigInt(this.table + offset), 8 * n);
      bytes.set(string, offset);
      offset += string.length;
    }
    keepalive.add(this);
  }

  /** The address of the `n`-th string. */
  at(n: number): Address {
    const view = new DataView(this.#bytes.buffer, this.#bytes.byteOffset);
    return Number(view.getBigUint64(8 * n, true)) as Address;
  }

  [Symbol.dispose](): void {
    keepalive.delete(this);
  }
}
