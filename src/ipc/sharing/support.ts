import type { DeviceAttribute } from '../../../ffi/attributes.ts';
import { Device } from '../../device.ts';
import { type IpcCause, IpcError } from '../../errors.ts';
import { checkInstance } from '../../validate.ts';
import { here } from '../identity.ts';

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

/** Why a way of sharing does not work, and what may be done about it. */
export interface Obstacle {
  readonly code: IpcCause;
  readonly reason: string;
  readonly remedy: string;
}

/** @throws IpcError for what is in the way, if anything */
export function refuse(obstacle: Obstacle | undefined): void {
  if (obstacle)
    throw new IpcError(`${obstacle.reason}. ${obstacle.remedy}`, undefined, obstacle.code);
}

/** What is in the way under WSL, whatever the device. */
export const wsl: Obstacle = {
  code: 'wsl',
  reason: 'WSL does not support CUDA IPC',
  remedy: 'Run both processes under Linux itself, or copy the data.',
};

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
  const support = (way: keyof IpcSupport): Support => {
    const obstacle = sharingObstacle(device, way);
    return obstacle ? { supported: false, reason: inWords(obstacle) } : yes;
  };
  return {
    memory: support('memory'),
    events: support('events'),
    pools: support('pools'),
    virtualMemory: support('virtualMemory'),
  };
}

const yes: Support = { supported: true, reason: '' };

const inWords = ({ code, reason, remedy }: Obstacle): string =>
  code === 'compute-mode' ? `${reason}: ${remedy}` : reason;

/** What keeps a device from sharing in one way; undefined where nothing does. */
export function sharingObstacle(
  device: Device,
  way: keyof IpcSupport,
  isWsl: boolean = here().isWsl,
): Obstacle | undefined {
  if (isWsl) return wsl;
  const mode = COMPUTE_MODES[device.attribute('computeMode')];
  if (mode)
    return {
      code: 'compute-mode',
      reason: `the device's compute mode is ${mode}`,
      remedy: 'a second process cannot use it (nvidia-smi -c DEFAULT)',
    };
  const reason = ways[way](device);
  if (!reason) return undefined;
  return {
    code: 'not-supported',
    reason,
    remedy: 'Share another kind of memory (ipcSupport tells which).',
  };
}

const legacy = (device: Device): string =>
  lacking(device, 'unifiedAddressing', 'unified addressing') ||
  (device.attribute('integrated') ? 'integrated GPUs have no legacy IPC' : '');

/** Why a device lacks it; empty where it does not. */
const ways: Readonly<Record<keyof IpcSupport, (device: Device) => string>> = {
  memory: legacy,
  events: (device) => legacy(device) || lacking(device, 'ipcEventSupported', 'interprocess events'),
  pools: (device) =>
    lacking(device, 'memoryPoolsSupported', 'memory pools') ||
    (device.attribute('mempoolSupportedHandleTypes') & POSIX_FILE_DESCRIPTOR
      ? ''
      : 'its memory pools cannot be shared by file descriptor'),
  virtualMemory: (device) =>
    lacking(device, 'virtualMemoryManagementSupported', 'virtual memory management') ||
    lacking(device, 'handleTypePosixFileDescriptorSupported', 'virtual memory by file descriptor'),
};

const lacking = (device: Device, attribute: DeviceAttribute, what: string): string =>
  device.attribute(attribute) ? '' : `the device does not support ${what}`;
