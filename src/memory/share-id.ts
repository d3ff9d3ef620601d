import { randomFillSync } from 'node:crypto';

const ID_BYTE_LENGTH = 16;
/** Random bytes for so many: asked for one by one they cost more than all else that names one. */
const random: Buffer = Buffer.allocUnsafeSlow(64 * ID_BYTE_LENGTH);
let used = random.byteLength;

/** What names something to other processes for its life: 16 random bytes in hex. */
export function shareId(): string {
  if (used === random.byteLength) {
    randomFillSync(random);
    used = 0;
  }
  used += ID_BYTE_LENGTH;
  return random.toString('hex', used - ID_BYTE_LENGTH, used);
}
