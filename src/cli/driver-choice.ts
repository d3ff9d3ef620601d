import { driverName, selectDriver } from '../../ffi/driver.ts';
import { driverVersion, isAvailable } from '../driver.ts';

/** The driver that a command uses, and why. */
export interface DriverChoice {
  /** The value of `CUFFI_DRIVER` with which a child process uses the same driver. */
  readonly name: string;
  /** The reason, for the first line of the output. */
  readonly reason: string;
}

/**
 * Selects the requested driver. Without a request: the real one if there is a GPU, otherwise the
 * emulated one. A broken GPU is an error, never a fallback.
 */
export function chooseDriver(requestedDriver: string | undefined): DriverChoice {
  const driver = requestedDriver ?? process.env['CUFFI_DRIVER'];
  if (driver) {
    selectDriver(driver);
    return { name: driver, reason: requestedDriver ? 'as --driver says' : 'as CUFFI_DRIVER says' };
  }
  if (isAvailable()) return { name: 'cuda', reason: 'a GPU is here' };
  replaceMissingGpu();
  return { name: 'emulated', reason: 'no GPU is here' };
}

/** Which driver a command uses, and why, for its first line. */
export function describeDriver({ name, reason }: DriverChoice): string {
  if (name === 'emulated')
    return `emulated, ${reason}: real processes and shared memory, but no GPU; its times say nothing about one`;
  const { major, minor } = driverVersion();
  return `${driverName()}, CUDA ${major}.${minor} (${reason})`;
}

/**
 * Selects the emulated driver in place of a GPU that is missing. `CUDA_VISIBLE_DEVICES` was meant for GPUs:
 * it may be what hides them, and must not hide the emulated devices of this process and its children.
 */
export function replaceMissingGpu(): void {
  delete process.env['CUDA_VISIBLE_DEVICES'];
  selectDriver('emulated');
}
