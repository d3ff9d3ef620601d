/** Copies host memory on a thread of libuv's pool, so that the event loop stays free. */

import { callOffThread } from './library.ts';
import { libc } from './linux/libc.ts';
import type { Address } from './types.ts';

/** The owners of memory that running copies use: koffi keeps nothing alive. */
const keepalive = new Set<readonly unknown[]>();

/**
 * Copies `byteLength` bytes within this process on one of libuv's four pool threads. Resolves when
 * the copy is done. Both ranges must stay mapped until then.
 *
 * @param owners objects that own the memory: kept alive until the copy is done
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
