export { isAvailable, driverVersion } from './driver.ts';
export { Device, devices } from './device.ts';
export { Context, type MemoryInfo, type PlaceOptions } from './context.ts';
export { Stream, type StreamOptions } from './stream.ts';
export { CudaEvent, type EventOptions } from './event.ts';
export { DeviceBuffer } from './memory/buffer.ts';
export type {
  BufferOptions,
  BufferOrigin,
  CopyOptions,
  FillOptions,
  PointerOptions,
  StreamOption,
} from './memory/buffer-options.ts';
export { copyPitched, copyPitchedSync, queuePitchedCopy } from './memory/copy-pitched.ts';
export { fillPitched } from './memory/fill-pitched.ts';
export {
  allocatePitched,
  type PitchedAllocation,
  type PitchedOptions,
} from './memory/allocate-pitched.ts';
export type { Extent, PitchedMemory } from './memory/pitched.ts';
export { DeviceMemory, type DeviceMemoryOptions } from './memory/device-memory.ts';
export { MemoryPool, type PoolCloseOptions, type PoolOptions } from './memory/pool.ts';
export type { PoolAccess, PoolReuse } from './memory/pool-driver.ts';
export { VirtualMemory, type VirtualMemoryOptions } from './memory/virtual.ts';
export { PinnedBuffer, type PinnedOptions } from './memory/pinned.ts';
export { pin, PinnedArrays, type PinOptions } from './memory/pin.ts';
export { MappedMemory, type MappedMemoryOptions } from './memory/mapped.ts';
export {
  type ManagedAdvice,
  type ManagedAttach,
  ManagedMemory,
  type ManagedMemoryOptions,
  type ManagedPlace,
} from './memory/managed.ts';
export { HostVisibleBuffer } from './memory/host-visible.ts';
export type { AllocateOptions, MemoryResource } from './memory/memory-resource.ts';
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
