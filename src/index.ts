export { isAvailable, driverVersion } from './driver.ts';
export { Device, devices } from './device.ts';
export { Context, type MemoryInfo, type PlaceOptions } from './context.ts';
export { Stream, type StreamOptions } from './stream.ts';
export { CudaEvent, type EventOptions } from './event.ts';
export {
  type BufferOrigin,
  type CopyOptions,
  DeviceBuffer,
  type FillOptions,
  type PointerOptions,
  type StreamOption,
} from './memory/buffer.ts';
export type { HostMemory } from './arguments.ts';
export type { WaitOptions } from './wait.ts';
export {
  ClosedError,
  CudaError,
  type CudaErrorDetails,
  CuffiError,
  DriverNotFoundError,
  IpcError,
  NotSupportedError,
} from './errors.ts';
