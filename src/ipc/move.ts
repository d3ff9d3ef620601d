import { checkInstance } from '../arguments.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { originOf, rememberOrigin } from './origin.ts';

/**
 * Takes what a buffer of another process's memory owns out of it: the buffer that this gives closes
 * the mapping, also where `buffer` goes out of its scope. `buffer` and its views count as closed.
 *
 * @throws TypeError for a view, and for a buffer of this process's own memory; CuffiError while a
 * handle made of it is open; ClosedError
 * @example
 * function open(message: unknown): DeviceBuffer {
 *   using buffer = openIpcBuffer(message);
 *   check(buffer); // what throws closes it
 *   return moveIpcBuffer(buffer);
 * }
 */
export function moveIpcBuffer(buffer: DeviceBuffer): DeviceBuffer {
  checkInstance(buffer, DeviceBuffer, 'buffer').address; // a closed one is refused
  const origin = originOf(buffer);
  if (!buffer.isMapped || buffer.whole !== buffer || !origin)
    throw new TypeError(
      'only what openIpcBuffer gave of another process has something to move: a view owns nothing, and ' +
        'memory of this process is its own',
    );
  const moved = buffer.handedOver();
  rememberOrigin(moved, origin);
  return moved;
}
