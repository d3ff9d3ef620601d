/** The errors that cuffi throws, with one base class: `error instanceof CuffiError`. */
import { type CUresult, resultName } from '../ffi/results.ts';

/** How many calls of cuffi itself may lie between an error and the caller's line. */
const OWN_FRAMES = 30;

/**
 * The base of every error that cuffi itself throws. Wrong arguments are TypeError or RangeError. Thrown
 * as such, a call is not possible in the present state, e.g. while a graph is captured.
 */
export class CuffiError extends Error {
  constructor(message?: string, options?: ErrorOptions) {
    const { stackTraceLimit } = Error;
    const isRaised = raiseStackTraceLimit(stackTraceLimit);
    super(message, options);
    if (isRaised) setStackTraceLimit(stackTraceLimit);
  }

  /**
   * What kind of error it is, for programs: lower case with hyphens, e.g. `closed`, and the same in every
   * version. {@link CudaError.code} is the driver's name, e.g. `CUDA_ERROR_OUT_OF_MEMORY`.
   */
  readonly code: string = 'invalid-state';
}

/** Makes an error whose stack reaches the user's line. */
export function withDeepStack<E extends Error>(make: () => E): E {
  const { stackTraceLimit } = Error;
  const isRaised = raiseStackTraceLimit(stackTraceLimit);
  try {
    return make();
  } finally {
    if (isRaised) setStackTraceLimit(stackTraceLimit);
  }
}

/** The first ten calls may all be cuffi's own: `toDevice` opens the driver eleven calls below. */
const raiseStackTraceLimit = (limit: number): boolean =>
  limit > 0 && setStackTraceLimit(limit + OWN_FRAMES);

/** Returns false if the program has frozen it. */
const setStackTraceLimit = (limit: number): boolean => Reflect.set(Error, 'stackTraceLimit', limit);

/**
 * Makes the stack of an error begin at the caller of `entry`: a recursion that it starts would fill the
 * stack. Returns the error.
 */
export function thrownFrom<E extends Error>(entry: (...args: never) => unknown, error: E): E {
  const { stack } = error;
  Error.captureStackTrace(error, entry);
  // Empty, if that function is not among the callers.
  if (stack && !error.stack?.includes('\n    at ')) error.stack = stack;
  return error;
}

/** Puts words before the message of an error that was made before, and into its stack. */
export function prefixMessage(error: Error, prefix: string): void {
  const { message, stack } = error;
  error.message = `${prefix}: ${message}`;
  if (stack?.includes(message)) error.stack = stack.replace(message, () => error.message);
}

/**
 * Sets properties of an error that printing it does not repeat, because the message has them. Those
 * that are undefined are not set.
 */
function setDetails<E extends Error>(error: E, details: Partial<E>): void {
  for (const [name, value] of Object.entries(details))
    if (value !== undefined) Object.defineProperty(error, name, { value, configurable: true });
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
  /** The output of the driver's compiler or linker. */
  readonly log?: string | undefined;
}

/**
 * A driver call failed. The call created nothing and left the current context as it was. The objects
 * that it used stay usable, unless {@link CudaError.sticky} says that the context is lost.
 *
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
 */
export class CudaError extends CuffiError {
  /** The status by number, e.g. 2. */
  readonly status: CUresult;
  /** The status by name, e.g. `CUDA_ERROR_OUT_OF_MEMORY`. */
  override readonly code: string;
  readonly call: string;
  declare readonly doing: string | undefined;
  declare readonly hint: string | undefined;
  /** The output of the driver's compiler or linker, if the call ran one. */
  declare readonly log: string | undefined;

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
    setDetails<CudaError>(this, { doing, hint, log });
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

/** No CUDA driver could be opened. The message says what was tried and what to do. */
export class DriverNotFoundError extends CuffiError {
  override readonly code = 'driver-not-found';
}

/** No libnvrtc could be opened. The message says what was tried and what to do. */
export class CompilerNotFoundError extends CuffiError {
  override readonly code = 'compiler-not-found';
}

/** The compiler rejected a source. The message contains its first line with an error, and the log. */
export class CompileError extends CuffiError {
  override readonly code = 'compile-failed';
  /** The whole output of the compiler or the linker. */
  declare readonly log: string;

  constructor(message: string, log: string) {
    super(log ? `${message}\n${log}` : message);
    setDetails<CompileError>(this, { log });
  }
}

/** The device, the driver or the platform does not support what was requested. */
export class NotSupportedError extends CuffiError {
  override readonly code = 'not-supported';
}

/**
 * A safetensors file, or the index of a sharded checkpoint, is not what the format demands. Nothing was
 * allocated for it, or all was freed.
 */
export class SafetensorError extends CuffiError {
  override readonly code = 'invalid-safetensors';
  /** The file. */
  declare readonly path: string;
  /** The name of the tensor that is wrong; undefined if the file as a whole is. */
  declare readonly tensor: string | undefined;

  constructor(message: string, path: string, tensor?: string) {
    const subject = tensor === undefined ? '' : `tensor ${JSON.stringify(shortened(tensor))} of `;
    super(`${subject}${path}: ${message}`);
    setDetails<SafetensorError>(this, { path, tensor });
  }
}

/** A name from a file may be as long as the file. */
const shortened = (name: string): string => (name.length > 200 ? `${name.slice(0, 200)}…` : name);

/** An object was used after it was closed. */
export class ClosedError extends CuffiError {
  override readonly code = 'closed';
}

/** What a {@link PeerGoneError} is made of. */
export interface PeerGoneDetails {
  readonly pid: number;
  readonly abandonedWaits: number;
  readonly exitCode?: number | undefined;
  readonly signal?: NodeJS.Signals | undefined;
  readonly stderr?: string | undefined;
}

/**
 * The process at the other end of a connection was killed or has failed: it ended without closing
 * the connection. Objects received from it stay usable. Waits for its unfinished work are
 * cancelled. An orderly end, by `close()` or by an exit with code 0, is a {@link ClosedError}.
 */
export class PeerGoneError extends CuffiError {
  override readonly code = 'peer-gone';
  /** The process id; 0 if the process is in another pid namespace. */
  readonly pid: number;
  /**
   * How many of its streams this process stopped waiting for, because their work can never be done.
   * Work here that was to follow them ran, with memory as they had left it.
   */
  readonly abandonedWaits: number;
  /** The exit code of a child of this process; undefined if a signal ended it, and for others. */
  declare readonly exitCode: number | undefined;
  /** The signal that ended a child of this process; undefined if it exited, and for others. */
  declare readonly signal: NodeJS.Signals | undefined;
  /**
   * The last 4 KiB that a child of this process has written to stderr, if that was passed on by this
   * process: see `stdio` of `spawnPeer`. Undefined for others.
   */
  declare readonly stderr: string | undefined;

  constructor(message: string, details: PeerGoneDetails) {
    super(message);
    const { pid, abandonedWaits, exitCode, signal, stderr } = details;
    this.pid = pid;
    this.abandonedWaits = abandonedWaits;
    if (exitCode !== undefined) this.exitCode = exitCode;
    if (signal !== undefined) this.signal = signal;
    // Its end is in the message; this process has printed all of it.
    setDetails<PeerGoneError>(this, { stderr });
  }
}

/** Why something of another process cannot be opened here. */
export type IpcCause =
  /** It is not a descriptor. */
  | 'invalid-descriptor'
  /** Another version of cuffi has made it, or is at the other end of the connection. */
  | 'version-mismatch'
  /** It was corrupted on its way: the checksum is wrong. */
  | 'corrupted'
  | 'other-machine'
  | 'same-process'
  /** The exporter has this process's pid number, in another pid namespace. */
  | 'same-pid'
  | 'wsl'
  | 'device-not-visible'
  /** The memory is in a MIG slice, which shares with no other. */
  | 'mig'
  | 'compute-mode'
  /** The device cannot share memory of this kind, or not for reading, or not as much. */
  | 'not-supported'
  | 'exporter-gone'
  /** The exporter is a process of another user. */
  | 'other-user'
  /** The file descriptor that belongs to the descriptor did not arrive with it. */
  | 'no-file-descriptor';

/** The codes of an {@link IpcError}. */
export type IpcErrorCode =
  | IpcCause
  /** More was sent or asked than the limits of docs/connections.md allow. */
  | 'limit-exceeded'
  /** The other end waits for values and has never called `serve`. */
  | 'not-served'
  /** The other end serves requests and has never received a value. */
  | 'not-received'
  /** `connect`: nobody listens at that name. */
  | 'not-listening'
  /** `listen`: somebody listens at that name already. */
  | 'address-in-use'
  /** `spawnPeer`: the process could not be started. */
  | 'spawn-failed'
  /** `parentPeer`: this process is not the child of a spawnPeer, or not its main thread. */
  | 'no-parent'
  | 'ipc-failed';

/**
 * Something cannot be shared, or what another process sent cannot be used here. If the driver
 * rejected it, `cause` is the driver's error, and the message repeats it.
 */
export class IpcError extends CuffiError {
  /** Why, if the cause is a known one; else `ipc-failed`. */
  override readonly code: IpcErrorCode;

  constructor(message: string, cause?: Error, code: IpcErrorCode = 'ipc-failed') {
    super(cause ? `${message}: ${cause.message}` : message, cause ? { cause } : {});
    this.code = code;
  }
}

/** Returns the same error once more, for one more call. */
export function copyIpcError({ message, cause, code }: IpcError): IpcError {
  const error = new IpcError(message, undefined, code);
  setDetails<IpcError>(error, { cause });
  return error;
}

// On the prototypes, so that the first line of a stack has the name, and no property repeats it.
for (const [name, { prototype }] of Object.entries({
  CuffiError,
  CudaError,
  DriverNotFoundError,
  CompilerNotFoundError,
  CompileError,
  NotSupportedError,
  SafetensorError,
  ClosedError,
  PeerGoneError,
  IpcError,
}))
  prototype.name = name;
