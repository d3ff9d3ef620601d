export {
  exportIpc,
  getIpcHandle,
  type Shareable,
  type ShareableMemory,
  type ShareOptions,
} from './export.ts';
export { IpcArrayHandle } from './array-handle.ts';
export { IpcBufferHandle } from './buffer-handle.ts';
export type { HandleOpenOptions, IpcMemoryHandle } from './memory-handle.ts';
export {
  openIpc,
  openIpcBuffer,
  openIpcEvent,
  openIpcPool,
  type Opened,
} from './import.ts';
export {
  type OpenArrayOptions,
  type OpenRawArrayOptions,
  openIpcArray,
  type RawIpcArray,
} from './array.ts';
export { moveIpcBuffer } from './move.ts';
export { type ReadyOptions, ready } from './ready.ts';
export type { OpenOptions } from './open-options.ts';
export { ImportedPool } from './imported-pool.ts';
export { type Explanation, explain } from './explain.ts';
export { type IpcSupport, ipcSupport, type Support } from './support.ts';
export type {
  IpcBufferDescriptor,
  IpcDescriptor,
  IpcEventDescriptor,
  IpcExporter,
  IpcLayout,
  IpcMemoryDescriptor,
  IpcPoolDescriptor,
  IpcRange,
  IpcVirtualDescriptor,
} from './descriptor.ts';
export { decodeDescriptor, encodeDescriptor } from './descriptor-binary.ts';
export type { Parcel } from './parcel.ts';
export { ReadyParcel } from './ready-parcel.ts';
export { leases } from './lease/leases.ts';
export type { LeaseStats, LeasesStats } from './lease/lease-book.ts';
export { Peer, type TransferOptions } from './peer/peer.ts';
export { ChildPeer } from './peer/child-peer.ts';
export { spawnPeer, type SpawnPeerOptions } from './peer/spawn.ts';
export { parentPeer } from './peer/parent.ts';
export { listen, Listener, type ListenOptions } from './peer/listener.ts';
export { connect, type ConnectOptions } from './peer/connect.ts';
export type { BusyPollOptions } from './peer/peer-options.ts';
export type { PeerCredentials, TrustOptions } from './peer/credentials.ts';
export type { DeadlineOptions } from './peer/deadline.ts';
