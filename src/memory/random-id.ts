/** Names that no other process can foresee: what others state is found again by them. */
import { hash, randomBytes, randomFillSync } from 'node:crypto';

const ID_BYTE_LENGTH = 16;
/** Random bytes for so many: asked for one by one they cost more than all else that names one. */
const randomBytesPool: Buffer = Buffer.allocUnsafeSlow(64 * ID_BYTE_LENGTH);
let used = randomBytesPool.byteLength;

/** What names something to other processes for its life: 16 random bytes in hex. */
export function randomId(): string {
  const at = takeBytes();
  return randomBytesPool.toString('hex', at, at + ID_BYTE_LENGTH);
}

/** A random number of 48 bits, other than 0. */
export const randomUint48 = (): number =>
  randomBytesPool.readUIntLE(takeBytes(), 6) || randomUint48();

let secret: string | undefined;

/** A number of the driver's as others see it: equal ones stay equal, and none tells the next. */
export function obfuscatedId(id: number): number {
  secret ??= randomBytes(16).toString('hex');
  return Number.parseInt(hash('sha256', `${secret} ${id}`).slice(0, 12), 16);
}

function takeBytes(): number {
  if (used === randomBytesPool.byteLength) {
    randomFillSync(randomBytesPool);
    used = 0;
  }
  used += ID_BYTE_LENGTH;
  return used - ID_BYTE_LENGTH;
}
