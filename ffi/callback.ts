/** C functions that call JavaScript. */
import koffi from 'koffi';
import type { Address } from './types.ts';

/**
 * The address of a C function `void (*)(void *)` that calls `call`, for the life of the process: one
 * that is unregistered while another thread is in it ends the process, and so does one that throws
 * there. On the main thread `call` runs at once; another thread waits until the main one has run it
 * between two turns of its loop, for ever where that waits for the thread. It does not keep the
 * process alive.
 *
 * @param call must not throw
 */
export function permanentCallback(call: (argument: Address) => void): Address {
  const type = koffi.proto('void cuffi_callback(uint64 argument)');
  return Number(koffi.register(call, koffi.pointer(type))) as Address;
}
