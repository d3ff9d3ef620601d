import type { DeviceAttribute } from '../../../ffi/attributes.ts';
import type { FunctionName } from '../../../ffi/functions.ts';
import { mayBeDriverMemory } from '../../../ffi/memory-fd.ts';
import type { CUresult } from '../../../ffi/results.ts';
import { cudaError } from '../../check.ts';
import { Device } from '../../device.ts';
import { type IpcCause, IpcError } from '../../errors.ts';
import { localProcess } from '../identity.ts';

/** Whether a device supports a way of sharing, and if not, why. */
export interface Support {
  readonly supported: boolean;
  /** Why not; empty if supported. */
  readonly reason: string;
}

/** What a device can share with other processes, as the driver and the platform report it. */
export interface IpcSupport {
  /** Memory of `DeviceBuffer.allocate` by its 64-byte handle. */
  readonly memory: Support;
  /** Events made with `{ interprocess: true }`. */
  readonly events: Support;
  /** Memory pools by file descriptor. */
  readonly pools: Support;
  /** Virtual memory by file descriptor. */
  readonly virtualMemory: Support;
}

/** What prevents opening or sharing an object, and what to do about it. */
export interface OpenBlocker {
  readonly code: IpcCause;
  readonly reason: string;
  readonly hint: string;
}

export const blockedError = ({ code, reason, hint }: OpenBlocker): IpcError =>
  new IpcError(`${reason}. ${hint}`, undefined, code);

/** @throws IpcError if the driver refused to open what another process shared, as `what` calls it */
export function checkOpened(status: CUresult, call: FunctionName, what: () => string): void {
  if (status === 0) return;
  throw new IpcError(`${what()} could not be opened`, cudaError(status, call));
}

/** Returns why file descriptors are not those that a descriptor needs; undefined if they are. */
export function fdBlocker(
  what: string,
  expected: number,
  numbers: readonly number[],
): OpenBlocker | undefined {
  const isComplete = numbers.length === expected;
  if (isComplete && numbers.every(mayBeDriverMemory)) return undefined;
  return {
    code: 'no-file-descriptor',
    reason: isComplete
      ? `a file descriptor that came with a descriptor of ${what} is not one of the driver's`
      : `a descriptor of ${what} needs ${expected} file descriptors, but ${numbers.length} came with it`,
    hint: 'Send it over a connection, or together with them through a Unix socket.',
  };
}

/** What to do about causes that errors, `explain` and `cuffi doctor` name. */
export const remedies = {
  otherMachine: 'Device memory can only be shared within one machine: copy the data.',
  mig: 'A MIG slice cannot share memory with another: run both processes on the same slice.',
  wsl: 'Run both processes under Linux itself, or copy the data.',
} as const;

/** WSL supports no sharing, on any device. */
export const wslBlocker: OpenBlocker = {
  code: 'wsl',
  reason: 'WSL does not support CUDA IPC',
  hint: remedies.wsl,
};

const POSIX_FILE_DESCRIPTOR = 1;

/** The compute modes in which a device admits one process at most. */
export const EXCLUSIVE_MODES: Readonly<Record<number, string>> = {
  2: 'prohibited',
  3: 'exclusive to one process',
};

/**
 * Returns what a device can share with other processes. Opens nothing.
 *
 * @param device a device or its ordinal; default device 0
 * @example
 * const { memory } = ipcSupport(0);
 * if (!memory.supported) console.log(memory.reason);
 */
export function ipcSupport(device: Device | number = 0): IpcSupport {
  const resolved = Device.resolve(device);
  const support = (capability: keyof IpcSupport): Support => {
    const blocker = capabilityBlocker(resolved, capability);
    return blocker ? { supported: false, reason: describeBlocker(blocker) } : SUPPORTED;
  };
  return {
    memory: support('memory'),
    events: support('events'),
    pools: support('pools'),
    virtualMemory: support('virtualMemory'),
  };
}

const SUPPORTED: Support = { supported: true, reason: '' };

const describeBlocker = ({ code, reason, hint }: OpenBlocker): string =>
  code === 'compute-mode' ? `${reason}: ${hint}` : reason;

/** Returns what prevents a device from sharing in one way; undefined if nothing does. */
export function capabilityBlocker(
  device: Device,
  capability: keyof IpcSupport,
  isWsl: boolean = localProcess().isWsl,
): OpenBlocker | undefined {
  if (isWsl) return wslBlocker;
  const mode = EXCLUSIVE_MODES[device.attribute('computeMode')];
  if (mode)
    return {
      code: 'compute-mode',
      reason: `the device's compute mode is ${mode}`,
      hint: 'a second process cannot use it (nvidia-smi -c DEFAULT)',
    };
  const reason = capabilityChecks[capability](device);
  if (!reason) return undefined;
  return {
    code: 'not-supported',
    reason,
    hint: 'Share another kind of memory (ipcSupport tells which).',
  };
}

const lackingLegacyIpc = (device: Device): string =>
  lacking(device, 'unifiedAddressing', 'unified addressing') ||
  (device.attribute('integrated') ? 'integrated GPUs have no legacy IPC' : '');

/** Functions that return why a device cannot share in a way, or an empty string. */
const capabilityChecks: Readonly<Record<keyof IpcSupport, (device: Device) => string>> = {
  memory: lackingLegacyIpc,
  events: (device) =>
    lackingLegacyIpc(device) ||
    // Drivers before 11.8 do not know the attribute, and can share events wherever they share memory.
    (device.attributeOr('ipcEventSupported', 1) ? '' : LACKING_EVENTS),
  pools: (device) =>
    lacking(device, 'memoryPoolsSupported', 'memory pools') ||
    (device.attribute('mempoolSupportedHandleTypes') & POSIX_FILE_DESCRIPTOR
      ? ''
      : 'its memory pools cannot be shared by file descriptor'),
  virtualMemory: (device) =>
    lacking(device, 'virtualMemoryManagementSupported', 'virtual memory management') ||
    lacking(device, 'handleTypePosixFileDescriptorSupported', 'virtual memory by file descriptor'),
};

const LACKING_EVENTS = 'the device does not support interprocess events';
const lacking = (device: Device, attribute: DeviceAttribute, what: string): string =>
  device.attribute(attribute) ? '' : `the device does not support ${what}`;
