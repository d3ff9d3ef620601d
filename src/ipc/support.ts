import { readFileSync } from 'node:fs';
import type { DeviceAttribute } from '../../ffi/attributes.ts';
import { checkInstance } from '../arguments.ts';
import { Device } from '../device.ts';

/** Whether a way of sharing works on a device, and if not, why. */
export interface Support {
  readonly supported: boolean;
  /** Why not; empty where supported. */
  readonly reason: string;
}

/** What a device can share with other processes, by what the driver and the platform say of it. */
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

const POSIX_FILE_DESCRIPTOR = 1;
const COMPUTE_MODES: Readonly<Record<number, string>> = {
  2: 'prohibited',
  3: 'exclusive to one process',
};

/**
 * What a device can share with other processes. Nothing is opened for it.
 *
 * @example
 * const { memory } = ipcSupport(Device.get(0));
 * if (!memory.supported) console.log(memory.reason);
 */
export function ipcSupport(device: Device): IpcSupport {
  checkInstance(device, Device, 'device');
  const platform = platformReason(device);
  const legacy = (): string =>
    platform ||
    lacking(device, 'unifiedAddressing', 'unified addressing') ||
    (device.attribute('integrated') ? 'integrated GPUs have no legacy IPC' : '');
  const pools = (): string =>
    platform ||
    lacking(device, 'memoryPoolsSupported', 'memory pools') ||
    (device.attribute('mempoolSupportedHandleTypes') & POSIX_FILE_DESCRIPTOR
      ? ''
      : 'its memory pools cannot be shared by file descriptor');
  return {
    memory: support(legacy()),
    events: support(legacy() || lacking(device, 'ipcEventSupported', 'interprocess events')),
    pools: support(pools()),
    virtualMemory: support(
      platform ||
        lacking(device, 'virtualMemoryManagementSupported', 'virtual memory management') ||
        lacking(
          device,
          'handleTypePosixFileDescriptorSupported',
          'virtual memory by file descriptor',
        ),
    ),
  };
}

const support = (reason: string): Support => ({ supported: reason === '', reason });

const lacking = (device: Device, attribute: DeviceAttribute, what: string): string =>
  device.attribute(attribute) ? '' : `the device does not support ${what}`;

function platformReason(device: Device): string {
  if (isWsl()) return 'WSL does not support CUDA IPC';
  const mode = COMPUTE_MODES[device.attribute('computeMode')];
  return mode
    ? `the device's compute mode is ${mode}: a second process cannot use it (nvidia-smi -c DEFAULT)`
    : '';
}

function isWsl(): boolean {
  try {
    return /microsoft/i.test(readFileSync('/proc/version', 'utf8'));
  } catch {
    return false;
  }
}
