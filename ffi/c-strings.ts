/** Strings as C takes them, in memory that stays where it is until it is given back. */
import { addressOf } from './native.ts';
import type { Address } from './types.ts';

/** What has yet to be given back: C knows addresses only, which keep nothing alive. */
const keepalive = new Set<CStrings>();

/**
 * Zero-terminated UTF-8 strings, and the array of pointers to them that C calls `char **`. Valid
 * until disposed, also while another thread reads them.
 *
 * @throws TypeError for a string with a zero in it, at which C would end it
 */
export class CStrings implements Disposable {
  /** Where the array of pointers begins; 0 where there are no strings. */
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

  /** Where the `n`-th string begins. */
  at(n: number): Address {
    const view = new DataView(this.#bytes.buffer, this.#bytes.byteOffset);
    return Number(view.getBigUint64(8 * n, true)) as Address;
  }

  [Symbol.dispose](): void {
    keepalive.delete(this);
  }
}
