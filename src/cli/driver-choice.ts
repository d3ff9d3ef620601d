import { selectDriver } from '../../ffi/driver.ts';
import { isAvailable } from '../driver.ts';

/** Which driver a program of ours runs on, and why. */
export interface DriverChoice {
  /** What `CUFFI_DRIVER` must be for a child process to use the same one. */
  readonly name: string;
  /** In words, for the first line of the output. */
  readonly reason: string;
}

/**
 * Selects the driver that was asked for; without a wish the real one where there is a GPU, and the
 * emulated one where there is none. A GPU that is there but broken is an error, never a fallback.
 */
export function chooseDriver(requestedDriver: string | undefined): DriverChoice {
  const driver = requestedDriver ?? process.env['CUFFI_DRIVER'];
  if (driver) {
    selectDriver(driver);
    return { name: driver, reason: requestedDriver ? 'as --driver says' : 'as CUFFI_DRIVER says' };
  }
  if (isAvailable()) return { name: 'cuda', reason: 'a GPU is here' };
  selectDriver('emulated');
  return { name: 'emulated', reason: 'no GPU is here' };
}
