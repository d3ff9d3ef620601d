/** Random ids that no other process can guess. Shared objects are looked up by them. */
import { hash, randomBytes, randomFillSync } from 'node:crypto';

/** Makes an id: 16 random bytes in hex. */
export function randomId(): string {
  const at = takeBytes();
  return randomBytesPool.toString('hex', at, at + ID_BYTE_LENGTH);
}

/** Makes a random 48-bit number that is not 0. */
export const randomUint48 = (): number =>
  randomBytesPool.readUIntLE(takeBytes(), 6) || randomUint48();

/**
 * Obfuscates a number of the driver for other processes. Equal numbers stay equal; no result
 * reveals the next.
 */
export function obfuscatedId(id: number): number {
  secret ??= randomBytes(16).toString('hex');
  return Number.parseInt(hash('sha256', `${secret} ${id}`).slice(0, 12), 16);
}

const ID_BYTE_LENGTH = 16;
/** A stock of random bytes: fetching them one id at a time would dominate the cost of an id. */
const randomBytesPool: Buffer = Buffer.allocUnsafeSlow(64 * ID_BYTE_LENGTH);
let used = randomBytesPool.byteLength;

let secret: string | undefined;

function takeBytes(): number {
  if (used === randomBytesPool.byteLength) {
    randomFillSync(randomBytesPool);
    used = 0;
  }
  used += ID_BYTE_LENGTH;
  return used - ID_BYTE_LENGTH;
}
