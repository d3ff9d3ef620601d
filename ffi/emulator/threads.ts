/**
 * Device memory of the other threads of this process, each of which has an emulated driver of its own: it
 * is mapped for all of them, and the system knows where.
 */
import { readFileSync } from 'node:fs';
import { isMainThread } from 'node:worker_threads';
import { isReserved } from './space.ts';

const MAPS = '/proc/self/maps';
/** The memfds that device memory is in: see BLOCK_NAME and its like. */
const DEVICE_MEMORY = /^([\da-f]+)-([\da-f]+) rw.*\/memfd:cuffi\.(?:memory|pool|virtual)/gm;

function* deviceMemory(): Generator<readonly [begin: number, end: number]> {
  for (const [, begin = '', end = ''] of readFileSync(MAPS, 'latin1').matchAll(DEVICE_MEMORY))
    yield [Number.parseInt(begin, 16), Number.parseInt(end, 16)];
}

/** Whether there may be other threads with device memory: to look for it takes long. */
let hasThreads = !isMainThread || !deviceMemory().next().done;
process.on('worker', () => {
  hasThreads = true;
});

/** Whether all these bytes are device memory that another thread has mapped. */
export function isMemoryOfOtherThread(address: number, byteLength: number): boolean {
  if (!hasThreads || isReserved(address)) return false;
  let at = address;
  for (const [begin, end] of deviceMemory()) {
    if (begin > at) return false;
    if (end > at) at = end;
    if (at >= address + byteLength) return true;
  }
  return false;
}
