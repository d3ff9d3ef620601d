/** Names that no other process can foresee: what others state is found again by them. */
import { hash, randomBytes, randomFillSync } from 'node:crypto';

const ID_BYTE_LENGTH = 16;
/** Random bytes for so many: asked for one by one they cost more than all else that names one. */
const random: Buffer = Buffer.allocUnsafeSlow(64 * ID_BYTE_LENGTH);
let used = random.byteLength;

/** What names something to other processes for its life: 16 random bytes in hex. */
export function shareId(): string {
  const at = take();
  return random.toString('hex', at, at + ID_BYTE_LENGTH);
}

/** A random number of 48 bits, other than 0. */
export const shareNumber = (): number => random.readUIntLE(take(), 6) || shareNumber();

let secret: string | undefined;

/** A number of the driver's as others see it: equal ones stay equal, and none tells the next. */
export function concealed(id: number): number {
  secret ??= randomBytes(16).toString('hex');
  return Number.parseInt(hash('sha256', `${secret} ${id}`).slice(0, 12), 16);
}

function take(): number {
  if (used === random.byteLength) {
    randomFillSync(random);
    used = 0;
  }
  used += ID_BYTE_LENGTH;
  return used - ID_BYTE_LENGTH;
}
