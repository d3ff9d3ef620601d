/** C functions that call JavaScript. */
import { koffi } from './koffi.ts';
import type { Address } from './types.ts';

/**
 * Returns the address of a C function `void (*)(void *)` that calls `call`. It stays registered for
 * the life of the process: unregistering it while another thread is in it would kill the process.
 * Called on the main thread, `call` runs at once. Another thread blocks until the main thread has
 * run it between two turns of its loop, so a deadlock is possible. It does not keep the process
 * alive.
 *
 * @param call must not throw: that kills the process
 */
export function permanentCallback(call: (argument: Address) => void): Address {
  const type = koffi().proto('void cuffi_callback(uint64 argument)');
  return Number(koffi().register(call, koffi().pointer(type))) as Address;
}
