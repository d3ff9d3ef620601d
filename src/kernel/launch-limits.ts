import type { Device } from '../device.ts';

/** What a device allows a launch. */
export interface LaunchLimits {
  /** The most blocks along each axis. */
  readonly grid: readonly [x: number, y: number, z: number];
  /** The most threads of a block along each axis. */
  readonly block: readonly [x: number, y: number, z: number];
  /** The most shared memory that a block may ask for, in bytes. */
  readonly sharedBytes: number;
}

const known = new WeakMap<Device, LaunchLimits>();

/** The limits of a device, asked once. */
export function launchLimits(device: Device): LaunchLimits {
  const found = known.get(device);
  if (found) return found;
  const limits: LaunchLimits = {
    grid: [
      device.attribute('maxGridDimX'),
      device.attribute('maxGridDimY'),
      device.attribute('maxGridDimZ'),
    ],
    block: [
      device.attribute('maxBlockDimX'),
      device.attribute('maxBlockDimY'),
      device.attribute('maxBlockDimZ'),
    ],
    sharedBytes: Math.max(
      device.attribute('maxSharedMemoryPerBlockOptin'),
      device.attribute('maxSharedMemoryPerBlock'),
    ),
  };
  known.set(device, limits);
  return limits;
}
