/** What contexts ask of the driver: which is current, on which device, and whether the primary one. */
import { OUT0, OUT1, OUT3, readHandle, readInt32 } from '../ffi/arena.ts';
import { cu } from '../ffi/driver.ts';
import type { CUcontext } from '../ffi/types.ts';
import { check } from './check.ts';
import { Device } from './device.ts';
import { initialize } from './driver.ts';

/** The context that is current on this thread, whoever made it. */
export function currentHandle(): CUcontext | undefined {
  initialize();
  check(cu.cuCtxGetCurrent(OUT0), 'cuCtxGetCurrent');
  const handle = readHandle<CUcontext>(OUT0);
  return handle === 0 ? undefined : handle;
}

/** The device of a context that another library made. @throws CudaError where it is none */
export function deviceOf(handle: CUcontext): Device {
  initialize();
  check(cu.cuCtxPushCurrent_v2(handle), 'cuCtxPushCurrent_v2', () => `borrowing context ${handle}`);
  const status = cu.cuCtxGetDevice(OUT0);
  const ordinal = readInt32(OUT0);
  check(cu.cuCtxPopCurrent_v2(OUT3), 'cuCtxPopCurrent_v2');
  check(status, 'cuCtxGetDevice');
  return Device.get(ordinal);
}

/** Retains the primary context of a device, until {@link resetPrimary}. */
export function retainPrimary(device: Device): CUcontext {
  const { handle } = device;
  check(
    cu.cuDevicePrimaryCtxRetain(OUT0, handle),
    'cuDevicePrimaryCtxRetain',
    () => `opening the primary context of ${device}`,
  );
  return readHandle<CUcontext>(OUT0, () => cu.cuDevicePrimaryCtxRelease_v2(handle));
}

/** Destroys what is in the primary context of a device, whoever made it. */
export function resetPrimary(device: Device, isRetained: boolean): void {
  const { handle } = device;
  const released = isRetained ? cu.cuDevicePrimaryCtxRelease_v2(handle) : 0;
  check(cu.cuDevicePrimaryCtxReset_v2(handle), 'cuDevicePrimaryCtxReset_v2');
  check(released, 'cuDevicePrimaryCtxRelease_v2');
}

/** Whether a context is the primary one of its device, whoever retained it. */
export function isPrimary(device: Device, handle: CUcontext): boolean {
  check(cu.cuDevicePrimaryCtxGetState(device.handle, OUT0, OUT1), 'cuDevicePrimaryCtxGetState');
  if (readInt32(OUT1) === 0) return false;
  check(cu.cuDevicePrimaryCtxRetain(OUT0, device.handle), 'cuDevicePrimaryCtxRetain');
  const primary = readHandle<CUcontext>(OUT0);
  check(cu.cuDevicePrimaryCtxRelease_v2(device.handle), 'cuDevicePrimaryCtxRelease_v2');
  return primary === handle;
}
