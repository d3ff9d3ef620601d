/** Which driver a command uses, and why. */
import { driverName, selectDriver } from '../../ffi/driver.ts';
import { driverVersion, isAvailable } from '../driver.ts';

/** The driver that a command uses, and why. */
export interface DriverChoice {
  /** The value of `CUFFI_DRIVER` with which a child process uses the same driver. */
  readonly name: string;
  /** The reason, for the first line of the output. */
  readonly reason: string;
}

const GPU: DriverChoice = { name: 'cuda', reason: 'a GPU is here' };

/**
 * Selects the requested driver. Without a request: the real one if there is a GPU, otherwise the
 * emulated one. A broken GPU is an error, never a fallback.
 */
export function chooseDriver(option: string | undefined): DriverChoice {
  const requested = requestedDriver(option);
  if (requested) {
    selectDriver(requested.name);
    return requested;
  }
  if (isAvailable()) return GPU;
  replaceMissingGpu();
  return { name: 'emulated', reason: 'no GPU is here' };
}

/** A driver that was tried. */
export interface TriedDriver {
  /** The driver in use; undefined if none could be used. */
  readonly name: string | undefined;
  readonly version: string | undefined;
  readonly reason: string;
  /** Why the real driver cannot be used; empty if it is, or was not asked for. */
  readonly error: string;
  /** The value of `CUFFI_DRIVER` for a second process. */
  readonly selection: string;
}

/** As {@link chooseDriver}, and uses the driver. What fails is a fact, not an error. */
export function tryDriver(option: string | undefined): TriedDriver {
  const requested = requestedDriver(option);
  if (option) selectDriver(option);
  const { name: selection, reason } = requested ?? GPU;
  const failed = (error: unknown): TriedDriver => ({
    name: undefined,
    version: undefined,
    reason: '',
    error: messageOf(error),
    selection,
  });
  try {
    if (isAvailable()) return opened(reason, '', selection);
  } catch (error) {
    return failed(error);
  }
  const error = whyUnavailable();
  if (requested) return failed(error);
  replaceMissingGpu();
  return opened('in place of the missing GPU', messageOf(error), 'emulated');
}

/** The driver that the option or `CUFFI_DRIVER` names, if one does. */
function requestedDriver(option: string | undefined): DriverChoice | undefined {
  const name = option ?? process.env['CUFFI_DRIVER'];
  return name ? { name, reason: option ? 'as --driver says' : 'as CUFFI_DRIVER says' } : undefined;
}

function opened(reason: string, error: string, selection: string): TriedDriver {
  const { major, minor } = driverVersion();
  return { name: driverName(), version: `${major}.${minor}`, reason, error, selection };
}

function whyUnavailable(): unknown {
  try {
    driverVersion();
    return new Error('the driver shows no device');
  } catch (error) {
    return error;
  }
}

const messageOf = (error: unknown): string =>
  error instanceof Error ? error.message : String(error);

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
function replaceMissingGpu(): void {
  delete process.env['CUDA_VISIBLE_DEVICES'];
  selectDriver('emulated');
}
