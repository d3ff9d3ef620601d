/** Random ids that no other process can guess. Shared objects are looked up by them. */
import { randomBytes, sha256 } from '../crypto.ts';

/** Makes an id: 16 random bytes in hex. */
export const randomId = (): string => randomBytes(16).toString('hex');

/** Makes a random 48-bit number that is not 0. */
export const randomUint48 = (): number => randomBytes(6).readUIntLE(0, 6) || randomUint48();

/**
 * Obfuscates a number of the driver for other processes. Equal numbers stay equal; no result
 * reveals the next.
 */
export function obfuscatedId(id: number): number {
  secret ??= randomId();
  return Number.parseInt(sha256(`${secret} ${id}`).slice(0, 12), 16);
}

let secret: string | undefined;
