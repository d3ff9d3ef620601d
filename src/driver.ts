/** Finds the driver and initializes it once. */
import { OUT0, readInt32 } from '../ffi/arena.ts';
import { cu, driverName, selectionCount } from '../ffi/driver.ts';
import { LibraryNotFoundError } from '../ffi/library.ts';
import { CUresult } from '../ffi/results.ts';
import { check } from './check.ts';
import { DriverNotFoundError } from './errors.ts';
import { loadPart } from './package.ts';

let initializedSelection = -1;

/** Finds and initializes the driver, at the first call only. @throws DriverNotFoundError, CudaError */
export function initialize(): void {
  if (initializedSelection === selectionCount()) return;
  check(callCuInit(), 'cuInit', () => `initialising ${driverName()}`);
  initializedSelection = selectionCount();
}

/** Whether this process has initialized the driver in use. */
export const isInitialized = (): boolean => initializedSelection === selectionCount();

function callCuInit(): CUresult {
  try {
    return loadPart(() => cu.cuInit(0));
  } catch (error) {
    if (error instanceof LibraryNotFoundError) throw new DriverNotFoundError(error.message);
    throw error;
  }
}

/**
 * Whether there is a CUDA driver and at least one device, as numba's `cuda.is_available()`.
 * If there is a GPU, but it is broken, the error is thrown.
 *
 * @throws CudaError for any failure but "no device" and the toolkit's stub library; TypeError
 * for a CUFFI_DRIVER that is neither cuda, emulated nor a path; NotSupportedError in a bundle that lacks
 * the emulated driver or koffi
 * @example
 * if (!cuda.isAvailable()) console.log('no GPU here');
 */
export function isAvailable(): boolean {
  let status: CUresult;
  try {
    status = callCuInit();
  } catch (error) {
    if (error instanceof DriverNotFoundError) return false;
    throw error;
  }
  if (status === CUresult.CUDA_ERROR_NO_DEVICE || status === CUresult.CUDA_ERROR_STUB_LIBRARY)
    return false;
  check(status, 'cuInit', () => `initialising ${driverName()}`);
  check(cu.cuDeviceGetCount(OUT0), 'cuDeviceGetCount');
  return readInt32(OUT0) > 0;
}

/** Returns the version of the CUDA API that the driver supports, e.g. `{ major: 13, minor: 0 }`. */
export function driverVersion(): { readonly major: number; readonly minor: number } {
  initialize();
  check(cu.cuDriverGetVersion(OUT0), 'cuDriverGetVersion');
  const version = readInt32(OUT0);
  return { major: Math.floor(version / 1000), minor: Math.floor((version % 1000) / 10) };
}
