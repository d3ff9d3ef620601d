/** Copies of host memory on a thread of libuv's pool: the event loop turns meanwhile. */

import { callOffThread } from './library.ts';
import { libc } from './linux/libc.ts';
import type { Address } from './types.ts';

/** What the copies under way read and write: koffi itself holds nothing that it was given. */
const keepalive = new Set<readonly unknown[]>();

/**
 * Copies `byteLength` bytes within this process on one of libuv's four pool threads; resolves when
 * they are there. Both ranges must stay mapped until then.
 *
 * @param owners what keeps the memory alive: not collected before the copy is done
 */
export async function copyHostMemory(
  target: Address,
  source: Address,
  byteLength: number,
  ...owners: readonly unknown[]
): Promise<void> {
  keepalive.add(owners);
  try {
    await callOffThread(libc.memmove, target, source, byteLength);
  } finally {
    keepalive.delete(owners);
  }
}
