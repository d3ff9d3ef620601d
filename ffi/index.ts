// cuffi/ffi: the driver's C interface as it is. Calls answer with status codes and never throw
// for one; handles and addresses are branded numbers; nothing is closed for you.

export { type AnonymousMapping, mapAnonymous } from './linux/mmap.ts';
export { type DeviceAttribute, deviceAttributes } from './attributes.ts';
export * from './arena.ts';
export * from './constants.ts';
export {
  type CallRecorder,
  cu,
  driverName,
  recordCalls,
  selectDriver,
} from './driver.ts';
export {
  type EmulatedArgument,
  type EmulatedKernel,
  type EmulatedLaunch,
  type EmulatedParameter,
  registerKernel,
} from './emulated-kernels.ts';
export { type Driver, type FunctionName, functions, type Needs, type Row } from './functions.ts';
export { copyHostMemory } from './host-copy.ts';
export { type Library, LibraryNotFoundError, type LibraryPurpose, openLibrary } from './library.ts';
export * from './linux/message.ts';
export * from './linux/libc.ts';
export { addressOf, MAX_VIEW_BYTE_LENGTH, stringAt, viewMemory, withAddress } from './native.ts';
export {
  type FdWatch,
  type Readiness,
  readable,
  type WatchedEvents,
  watchFd,
} from './linux/poll.ts';
export { CUresult, resultName } from './results.ts';
export * from './linux/socket.ts';
export { bytesCopied, type CallRecord } from './trace.ts';
export { type StructName, type StructValues, structs } from './structs.ts';
export type {
  Address,
  CUcontext,
  CUdevice,
  CUdeviceptr,
  CUevent,
  CUfunction,
  CUgraph,
  CUgraphExec,
  CUmemGenericAllocationHandle,
  CUmemoryPool,
  CUmodule,
  CUstream,
  Handle,
  IpcHandleBytes,
} from './types.ts';
