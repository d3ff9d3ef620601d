export { exportIpc, getIpcHandle, type ShareOptions } from './sharing/export.ts';
export type { Opened, Shareable } from './sharing/kinds.ts';
export type { ShareableMemory } from './sharing/memory.ts';
export { IpcArrayHandle } from './sharing/memory-handle.ts';
export { IpcBufferHandle } from './sharing/memory-handle.ts';
export type { HandleOpenOptions, IpcMemoryHandle } from './sharing/memory-handle.ts';
export {
  openIpc,
  openIpcBuffer,
  openIpcEvent,
  openIpcPool,
} from './sharing/import.ts';
export { type OpenArrayOptions, openIpcArray } from './sharing/import.ts';
export type { OpenRawArrayOptions, RawIpcArray } from './sharing/raw-array.ts';
export { moveIpcBuffer } from './sharing/memory.ts';
export { type ReadyOptions, ready } from './sharing/memory-handle.ts';
export { ImportedPool } from './sharing/imported-pool.ts';
export { type Explanation, explain } from './sharing/explain.ts';
export type { OpenOptions } from './sharing/kind.ts';
export { type TritonRegion, type TritonRegionOptions, tritonRegion } from './sharing/triton.ts';
export { type IpcSupport, ipcSupport, type Support } from './sharing/blockers.ts';
export type {
  Exported,
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
export { decodeDescriptor, encodeDescriptor } from './sharing/descriptor-codec.ts';
export { ReadyExport } from './sharing/memory-handle.ts';
export { Timeline, TimelineSignaler } from './timeline/timeline.ts';
export {
  type AcquireOptions,
  Channel,
  type ChannelStats,
  ProducerSlot,
  type PublishOptions,
} from './channel/channel.ts';
export type { Delivery } from './channel/producer.ts';
export type { ChannelOptions } from './channel/channel.ts';
export { ChannelConsumer, ConsumerSlot, type ConsumerStats } from './channel/channel-consumer.ts';
export { leases } from './lease/leases.ts';
export type { LeaseStats, LeasesStats } from './lease/export-table.ts';
export { Peer, type ServeOptions, type TransferOptions } from './peer/peer.ts';
export type { PeerStats } from './peer/connection.ts';
export type { DiagnosticMessages, RequestTrace, Traffic } from '../diagnostics.ts';
export type { ConnectionEnd } from './peer/connection.ts';
export type { RequestContext } from './peer/requests.ts';
export type { Answer, Anything, Outgoing, Sendable } from './peer/sendable.ts';
export { ChildPeer } from './peer/spawn.ts';
export { spawnPeer, type SpawnPeerOptions } from './peer/spawn.ts';
export { spawnPython, type SpawnPythonOptions } from './peer/spawn-python.ts';
export { parentPeer } from './peer/spawn.ts';
export {
  PeerPool,
  type PeerPoolOptions,
  type PeerPoolStats,
  type PoolScript,
  type PoolRunOptions,
} from './pool/peer-pool.ts';
export type { PoolMember } from './pool/member.ts';
export { listen, Listener, type ListenOptions } from './peer/listener.ts';
export { connect, type ConnectOptions } from './peer/connect.ts';
export type { BusyPollOptions, WaitingOptions } from './peer/peer-options.ts';
export type { PeerCredentials, TrustOptions } from './peer/credentials.ts';
export type { WaitOptions } from '../deadline.ts';
