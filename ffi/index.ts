// cuffi/ffi: the driver's C interface as it is. Calls return status codes and never throw for one.
// Handles and addresses are branded numbers. Nothing is closed for you.

export {
  type CallRecorder,
  cu,
  type DeclareOptions,
  type DriverFunction,
  declareFunction,
  driverName,
  recordCalls,
  selectDriver,
} from './driver.ts';
export { type Driver, type FunctionName, functions, type Needs, type Row } from './functions.ts';
/** The types of parameters, for `declareFunction`. */
export * as types from './types.ts';
export type {
  Address,
  Arguments,
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
  CType,
  Handle,
  IpcHandleBytes,
} from './types.ts';
export { CUresult, resultName } from './results.ts';
export { bytesCopied, type CallRecord } from './trace.ts';
export * from './constants.ts';
export { type DeviceAttribute, deviceAttributes } from './attributes.ts';
export { type StructName, type StructValues, structs } from './structs.ts';
export {
  readBase64,
  readBytes,
  readFloat32,
  readHandle,
  readInt32,
  readSize,
  readString,
  readUint32,
  readUint64,
  writeBytes,
  writeInt32,
  writeStruct,
  writeUint64,
} from './arena.ts';
export { addressOf, MAX_VIEW_BYTE_LENGTH, stringAt, viewMemory, withAddress } from './native.ts';
export { copyHostMemory } from './host-copy.ts';
export { type Library, LibraryNotFoundError, type LibraryPurpose, openLibrary } from './library.ts';
export type { NativeFunction } from './library.ts';
export { BundledError } from './package.ts';
export {
  type EmulatedArgument,
  type EmulatedKernel,
  type EmulatedLaunch,
  type EmulatedParameter,
  registerKernel,
} from './emulated-kernels.ts';
export {
  checkFd,
  closeFd,
  createMemfd,
  duplicateFd,
  type FdStatus,
  isInMemory,
  isOpenFd,
  isSameFile,
  isShortage,
  type Mapping,
  mapShared,
  SystemError,
  setCloseOnExec,
  statusOfFd,
  succeeded,
} from './linux/libc.ts';
export { type HostMapping, mapAnonymous } from './linux/mmap.ts';
export {
  acceptSocket,
  closeListener,
  closeSocket,
  connectSocket,
  isMessageSocket,
  isSocketInUse,
  listenSocket,
  MAX_SOCKET_NAME_BYTE_LENGTH,
  type PeerCredentials,
  peerCredentials,
  socketPair,
} from './linux/socket.ts';
export {
  discardUnread,
  isGone,
  MAX_MESSAGE_BYTE_LENGTH,
  MAX_MESSAGE_FDS,
  receiveMessage,
  type SocketMessage,
  sendMessage,
  takeMessage,
} from './linux/message.ts';
export {
  type FdWatch,
  type Readiness,
  readable,
  type WatchedEvents,
  watchFd,
} from './linux/poll.ts';
