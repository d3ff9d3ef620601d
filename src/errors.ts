/** The errors that cuffi throws: one family, so that `error instanceof CuffiError` tells. */
import { type CUresult, resultName } from '../ffi/results.ts';

/** The base of every error that cuffi throws of its own; wrong arguments are TypeError or RangeError. */
export class CuffiError extends Error {
  override name = 'CuffiError';
}

/** What a {@link CudaError} is made of. */
export interface CudaErrorDetails {
  readonly status: CUresult;
  /** The driver's function, e.g. `cuMemAlloc_v2`. */
  readonly call: string;
  /** The driver's own description. */
  readonly description: string;
  /** What cuffi was doing, e.g. `allocating 4096 bytes`. */
  readonly doing?: string | undefined;
  /** What the caller may do about it. */
  readonly hint?: string | undefined;
  /** What the driver's compiler or linker wrote. */
  readonly log?: string | undefined;
}

/**
 * A driver call failed. The call created nothing and left the current context as it was; the
 * objects that it touched stay usable, unless {@link CudaError.sticky} says that the context is
 * lost.
 *
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
 */
export class CudaError extends CuffiError {
  override name = 'CudaError';
  /** The status by number, e.g. 2. */
  readonly status: CUresult;
  /** The status by name, e.g. `CUDA_ERROR_OUT_OF_MEMORY`. */
  readonly code: string;
  readonly call: string;
  readonly doing: string | undefined;
  readonly hint: string | undefined;
  /** What the driver's compiler or linker wrote, where it was asked to work. */
  readonly log: string | undefined;

  constructor({ status, call, description, doing, hint, log }: CudaErrorDetails) {
    const code = resultName(status);
    super(
      [
        `${call} failed${doing ? ` while ${doing}` : ''}: ${description} (${code}, ${status})`,
        ...(log ? [log] : []),
        ...(hint ? [hint] : []),
      ].join('\n'),
    );
    this.status = status;
    this.code = code;
    this.call = call;
    this.doing = doing;
    this.hint = hint;
    this.log = log || undefined;
  }

  /** Whether the context is lost: every later call in it fails until the process ends. */
  get sticky(): boolean {
    return isSticky(this.status);
  }
}

// CUDA_ERROR_ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, ASSERT to LAUNCH_FAILED, ECC_UNCORRECTABLE, and so on:
// the driver's documentation says of each that the process must be terminated and relaunched.
const STICKY: ReadonlySet<number> = new Set([
  214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719,
]);

/** Whether a status means that its context is lost. */
export const isSticky = (status: CUresult): boolean => STICKY.has(status);

/** No CUDA driver could be opened. The message names what was tried and what to do. */
export class DriverNotFoundError extends CuffiError {
  override name = 'DriverNotFoundError';
}

/** No libnvrtc could be opened. The message names what was tried and what to do. */
export class CompilerNotFoundError extends CuffiError {
  override name = 'CompilerNotFoundError';
}

/** A source that the compiler refuses; the message has the first line at fault and the log. */
export class CompileError extends CuffiError {
  override name = 'CompileError';
  /** All that the compiler or the linker said. */
  readonly log: string;

  constructor(message: string, log: string) {
    super(log ? `${message}\n${log}` : message);
    this.log = log;
  }
}

/** The device, the driver or the platform cannot do what was asked. */
export class NotSupportedError extends CuffiError {
  override name = 'NotSupportedError';
}

/** An object was used after it was closed. */
export class ClosedError extends CuffiError {
  override name = 'ClosedError';
}

/** What a {@link PeerGoneError} is made of. */
export interface PeerGoneDetails {
  readonly pid: number;
  readonly abandonedWaits: number;
  readonly exitCode?: number | undefined;
  readonly signal?: NodeJS.Signals | undefined;
}

/**
 * The process at the other end of a connection was killed or has failed: it ended without closing
 * the connection. Objects received from it stay usable. Waits for its unfinished work are
 * cancelled. An orderly end, by `close()` or by an exit with code 0, is a {@link ClosedError}.
 */
export class PeerGoneError extends CuffiError {
  override name = 'PeerGoneError';
  /** The process; 0 if it was of another pid namespace. */
  readonly pid: number;
  /**
   * How many of its streams were waited for here whose work was never done: the work here that
   * was to follow ran over memory as they had left it.
   */
  readonly abandonedWaits: number;
  /** The exit code of a child of this process; undefined if a signal ended it, and for others. */
  readonly exitCode: number | undefined;
  /** The signal that ended a child of this process; undefined if it exited, and for others. */
  readonly signal: NodeJS.Signals | undefined;

  constructor(message: string, details: PeerGoneDetails, options?: ErrorOptions) {
    super(message, options);
    this.pid = details.pid;
    this.abandonedWaits = details.abandonedWaits;
    this.exitCode = details.exitCode;
    this.signal = details.signal;
  }
}

/** Why something of another process cannot be opened here, in one word. */
export type IpcCause =
  /** It is not a descriptor, or one of another version of cuffi. */
  | 'invalid-descriptor'
  /** It was corrupted on its way: the checksum is wrong. */
  | 'corrupted'
  | 'other-machine'
  | 'same-process'
  /** The exporter has this process's pid number, in another pid namespace. */
  | 'same-pid'
  | 'wsl'
  | 'device-not-visible'
  /** It is of a MIG slice, which shares with no other. */
  | 'mig'
  | 'compute-mode'
  /** Memory of this kind cannot be shared by the device, or not for reading, or not so large. */
  | 'not-supported'
  | 'exporter-gone'
  /** It is of another user's process. */
  | 'other-user'
  /** The file descriptor that it needs did not come with it. */
  | 'no-file-descriptor';

/**
 * Something cannot be shared, or what another process sent cannot be used here. `cause` is the
 * driver's answer where it was asked; the message repeats it.
 */
export class IpcError extends CuffiError {
  override name = 'IpcError';
  /** Why, in one word, where it is one of the known causes: see `explain` of cuffi/ipc. */
  readonly code: IpcCause | undefined;

  constructor(message: string, cause?: Error, code?: IpcCause) {
    super(cause ? `${message}: ${cause.message}` : message, cause ? { cause } : {});
    this.code = code;
  }

  /** @internal The same error for one more call: this one is its `cause`. */
  copyWithCause(): IpcError {
    const error = new IpcError(this.message, undefined, this.code);
    error.cause = this;
    return error;
  }
}
