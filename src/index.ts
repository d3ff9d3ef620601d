export { isAvailable, driverVersion } from './driver.ts';
export { check } from './check.ts';
export { Device, type DeviceLink, devices } from './device.ts';
export { Context, type PlaceOptions } from './context.ts';
export type { MemoryInfo } from './context.ts';
export { Stream, type StreamOption, type StreamOptions } from './stream.ts';
export { CudaEvent, type EventOptions } from './event.ts';
export {
  Dtype,
  type DlpackType,
  bool,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  bfloat16,
  float8_e4m3fn,
  float8_e5m2,
  float32,
  float64,
  complex64,
  complex128,
  defaultDtype,
} from './dtype.ts';
export {
  dtype,
  dtypeFromDlpack,
  dtypeOf,
  type AnyDtypeName,
  type DtypeName,
  type DtypeOf,
  type DtypeOrName,
  type NamedDtype,
} from './dtype.ts';
export { fromBfloat16, fromFloat16, toBfloat16, toFloat16 } from './float16.ts';
export type { NativeFloat16Array, TypedArray, TypedArrayConstructor } from './typed-array.ts';
export { DeviceBuffer } from './memory/buffer.ts';
export type {
  Access,
  BufferCloseOptions,
  BufferOptions,
  BufferOrigin,
  CopyOptions,
  FillOptions,
  PointerOptions,
} from './memory/buffer.ts';
export { copyPitched, copyPitchedSync, queuePitchedCopy } from './memory/pitched-copy.ts';
export { fillPitched } from './memory/pitched-memory.ts';
export {
  allocatePitched,
  type PitchedAllocation,
  type PitchedOptions,
} from './memory/pitched-memory.ts';
export type { Extent, PitchedMemory } from './memory/pitched.ts';
export { DeviceMemory, type DeviceMemoryOptions } from './memory/buffer.ts';
export { MemoryPool } from './memory/pool.ts';
export type { PoolAccess, PoolReuse } from './memory/pool-attributes.ts';
export type { PoolCloseOptions, PoolOptions } from './memory/pool-attributes.ts';
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
export type { AllocateOptions, MemoryResource } from './memory/buffer.ts';
export { memoryManager, setMemoryManager } from './memory/manager/manager-adapter.ts';
export type { MemoryManagerClass } from './memory/manager/manager-adapter.ts';
export {
  BaseMemoryManager,
  type MemhostallocOptions,
  type MempinOptions,
} from './memory/manager/memory-manager.ts';
export { HostOnlyMemoryManager } from './memory/manager/memory-manager.ts';
export { DriverMemoryManager } from './memory/manager/memory-manager.ts';
export { MemoryPointer, type PointerInit } from './memory/manager/memory-pointer.ts';
export { AutoFreePointer } from './memory/manager/memory-pointer.ts';
export { MappedPointer } from './memory/manager/memory-pointer.ts';
export { PinnedPointer } from './memory/manager/memory-pointer.ts';
export type { Finalizer } from './memory/manager/memory-pointer.ts';
export { IpcHandle, type IpcHandleInit } from './memory/manager/memory-pointer.ts';
export { Module, type ModuleOptions } from './kernel/module.ts';
export type { ModuleImage } from './kernel/image.ts';
export type { JitOptions } from './kernel/jit.ts';
export { Kernel } from './kernel/kernel.ts';
export { Graph } from './kernel/graph.ts';
export type { KernelNode } from './kernel/graph.ts';
export type { Extents3, LaunchConfig } from './kernel/launch-config.ts';
export type { Addressed, Argument, Arguments, Parameter } from './kernel/kernel-arguments.ts';
export type { KernelAttributes } from './kernel/function-attributes.ts';
export type { OccupancyOptions, SuggestedBlock } from './kernel/function-attributes.ts';
export { link, type LinkOptions } from './kernel/link.ts';
export { compile, compileSync } from './kernel/compile.ts';
export type { CodeKind } from './kernel/architecture.ts';
export { CompiledCode } from './kernel/compile.ts';
export type { CompileOptions } from './kernel/compile-options.ts';
export { type ArraySource, DeviceArray } from './array/device-array.ts';
export {
  type ArrayShape,
  deviceArray,
  deviceArrayLike,
  type ManagedArrayOptions,
  type MappedArrayOptions,
  managedArray,
  mappedArray,
} from './array/create.ts';
export {
  type ToDeviceOptions,
  type ToDeviceSyncOptions,
  toDevice,
  toDeviceSync,
} from './array/to-device.ts';
export { PinnedArray, type PinnedArrayOptions, pinnedArray } from './array/pinned-array.ts';
export type {
  ArrayCopyOptions,
  DeviceArrayLikeOptions,
  DeviceArrayOptions,
  FromBufferOptions,
  OrderOption,
} from './array/array-options.ts';
export { fromBuffer } from './array/from-buffer.ts';
export { type FromPointerOptions, fromPointer } from './array/borrow.ts';
export {
  type CudaArrayInterface,
  type CudaArrayInterfaceOptions,
  cudaArrayInterface,
  fromCudaArrayInterface,
} from './array/cuda-array-interface.ts';
export {
  type DlpackDevice,
  type DlpackOptions,
  type DlpackTensor,
  dlpack,
  fromDLPack,
} from './array/dlpack.ts';
export { type ManagedTensor, managedTensor } from './array/managed-tensor.ts';
export type { BorrowOptions } from './array/borrow.ts';
export { type Nested, type NestedOf, type NestedOptions, toNested } from './array/nested.ts';
export type {
  Complex,
  HostArray,
  HostValues,
  Item,
  ItemOf,
  ItemValue,
} from './array/items.ts';
export type { Sections, Selector, Slice } from './array/indexing.ts';
export type { Extents, Order } from './array/layout.ts';
export type { Shape } from './array/shape.ts';
export type { HostMemory } from './validate.ts';
export type { WaitOptions } from './deadline.ts';
export {
  ClosedError,
  CompileError,
  CompilerNotFoundError,
  CudaError,
  type CudaErrorDetails,
  CuffiError,
  DriverNotFoundError,
  type IpcCause,
  type IpcErrorCode,
  IpcError,
  NotSupportedError,
  type PeerGoneDetails,
  PeerGoneError,
  SafetensorError,
} from './errors.ts';
