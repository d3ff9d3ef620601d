/** Which driver is measured. */
import { driverVersion, isAvailable } from 'cuffi';
import { driverName, selectDriver } from 'cuffi/ffi';

/** The driver of a run, and why it is that one. */
export interface DriverChoice {
  /** What `CUFFI_DRIVER` must be for a child process to use the same one. */
  readonly name: string;
  /** `emulated`, or the path that libcuda was opened by. */
  readonly library: string;
  readonly reason: string;
  /** Whether no GPU is behind it: its times are then no times of a GPU. */
  readonly emulated: boolean;
  /** The version of the CUDA API. */
  readonly version: string;
}

/**
 * The driver that `CUFFI_DRIVER` names; without it the real one where there is a GPU, else the
 * emulated one. A GPU that is there but broken is an error.
 */
export function chooseDriver(): DriverChoice {
  const asked = process.env['CUFFI_DRIVER'];
  if (asked) return describe(asked, 'as CUFFI_DRIVER says');
  if (isAvailable()) return describe('cuda', 'a GPU is here');
  selectDriver('emulated');
  return describe('emulated', 'no GPU is here');
}

function describe(name: string, reason: string): DriverChoice {
  const { major, minor } = driverVersion();
  const library = driverName();
  const emulated = library === 'emulated';
  return { name, library, reason, emulated, version: `${major}.${minor}` };
}
