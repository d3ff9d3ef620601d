/** The kinds of objects that can be shared with other processes: one table, with a row for each. */

import { DeviceArray } from '../../array/device-array.ts';
import { layoutExtents } from '../../array/layout.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import type { Resource } from '../../lifetime.ts';
import { type Access, DeviceBuffer, keepMemoryAlive } from '../../memory/buffer.ts';
import { PinnedBuffer } from '../../memory/pinned.ts';
import { MemoryPool } from '../../memory/pool.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import type { Stream } from '../../stream.ts';
import { Channel } from '../channel/channel.ts';
import { ChannelConsumer } from '../channel/channel-consumer.ts';
import type {
  AnyExported,
  AnyFields,
  DescriptorFields,
  ExportedFields,
  HostFields,
  HostKind,
  IpcKind,
  MemoryFields,
} from '../descriptor.ts';
import { Timeline, TimelineSignaler } from '../timeline/timeline.ts';
import { exportArray } from './array.ts';
import { exportChannel, openChannel } from './channel.ts';
import { exportEvent } from './event.ts';
import { type ImportSource, knownFacts } from './facts.ts';
import { type ReceivedFds, reexportBuffer, type Sender } from './imported-object.ts';
import { ImportedPool } from './imported-pool.ts';
import { exportLegacy } from './legacy.ts';
import { type OpenOptions, openObject } from './open.ts';
import { exportPinned, openPinned } from './pinned.ts';
import { exportPool, exportPoolMemory } from './pool.ts';
import { keepUntilClosed, openTimeline } from './timeline.ts';
import { exportVirtual } from './virtual.ts';
import { publish } from './worker-exports.ts';

/** Memory that can be shared with another process. Virtual memory arrives as a buffer. */
export type ShareableMemory = DeviceArray | DeviceBuffer | VirtualMemory;

/** What can be shared with another process. */
export type Shareable =
  | ShareableMemory
  | CudaEvent
  | MemoryPool
  | ImportedPool
  | Timeline
  | TimelineSignaler
  | PinnedBuffer
  | Channel;

/** What kind of object it is, in one word, as `leases.stats()` shows it. */
export type ObjectKindName = 'memory' | 'pool' | 'event' | 'timeline' | 'pinned' | 'channel';

/** A row of the table: objects of one kind, and how they travel. */
export interface ShareableKind<T extends object = object> {
  readonly name: ObjectKindName;
  /** The kinds of descriptors that its objects travel as. */
  readonly descriptorKinds: readonly (IpcKind | HostKind)[];
  isInstance(object: object): object is T;
  /** Whether another process made the object. */
  isImported(object: T): boolean;
  /** Whether its export is the same each time, while it is open. Default: no. */
  isConstant?(object: T): boolean;
  /** The buffer that an object is, or lies in. */
  bufferOf?(object: T): DeviceBuffer;
  /** The context whose streams use an object. Default: that of its buffer. */
  contextOf?(object: T): Context;
  /** @throws IpcError, ClosedError, RangeError for memory without bytes */
  export(object: T): AnyExported;
  /**
   * Opens what another process exported. The caller keeps the file descriptors that are not taken.
   *
   * @throws IpcError
   */
  import(
    descriptor: AnyFields,
    fds: ReceivedFds,
    options: Omit<OpenOptions, 'fds'>,
    sender?: Sender,
  ): object;
  /** Closes an imported object that nobody received. */
  discard(object: T): void;
  /** Whether an object was imported as this kind, if those are of another class. */
  isOpened?(object: object): boolean;
  /**
   * Keeps an object for another process. Returns the function that ends the keeping. Default: until
   * then, nothing that the object owns is released.
   */
  keep?(object: T, name: string): () => void;
  /** The memory that an object has, if others have it by the object only. */
  memoryOf?(object: T): VirtualMemory;
  /**
   * Returns file descriptors for one process, which are sent before those of the export. Called once
   * after each {@link keep}. The caller owns them.
   */
  fdsForPeer?(object: T): readonly number[];
}

const memory: ShareableKind<ShareableMemory> = {
  name: 'memory',
  descriptorKinds: ['legacy', 'pool', 'virtual'],
  isInstance: (object) =>
    object instanceof DeviceBuffer ||
    object instanceof DeviceArray ||
    object instanceof VirtualMemory,
  isImported: (object) => memoryBufferOf(object).origin === 'imported',
  // Virtual memory may grow. Borrowed memory may have been freed and allocated again.
  isConstant: (object) =>
    !(object instanceof VirtualMemory) && memoryBufferOf(object).origin !== 'borrowed',
  bufferOf: memoryBufferOf,
  export: exportMemory,
  import: openObject,
  discard: (object) => object.close(),
};

const pool: ShareableKind<MemoryPool | ImportedPool> = {
  name: 'pool',
  descriptorKinds: ['pool'],
  isInstance: (object) => object instanceof MemoryPool || object instanceof ImportedPool,
  isImported: (object) => object instanceof ImportedPool,
  export: (object) => (object instanceof MemoryPool ? exportPool(object) : reexportPool(object)),
  import: openObject,
  discard(object) {
    // A pool that others use stays open.
    if (object instanceof ImportedPool) object.removeUser();
  },
};

const event: ShareableKind<CudaEvent> = {
  name: 'event',
  descriptorKinds: ['event'],
  isInstance: (object) => object instanceof CudaEvent,
  isImported: (object) => object.imported,
  export: (object) => ({ descriptor: exportEvent(object), fds: [] }),
  import: openObject,
  discard: (object) => object.close(),
};

const timeline: ShareableKind<Timeline> = {
  name: 'timeline',
  descriptorKinds: ['timeline'],
  isInstance: (object) => object instanceof Timeline,
  // Every process that has it can forward it without asking its owner.
  isImported: () => false,
  isConstant: () => true,
  export: ({ fds }) => ({
    descriptor: { kind: 'timeline' },
    fds: [fds.memory, fds.lifeline],
  }),
  import: (descriptor, fds, _, sender) =>
    openTimeline(descriptor as HostFields<'timeline'>, fds, sender),
  discard: (object) => object.close(),
  keep: keepUntilClosed,
};

const signaler: ShareableKind<TimelineSignaler> = {
  name: 'timeline',
  descriptorKinds: ['signaler'],
  isInstance: (object) => object instanceof TimelineSignaler,
  isImported: () => false,
  export: ({ fds, last }) => ({ descriptor: { kind: 'signaler', last }, fds }),
  import: (descriptor, fds, _, sender) =>
    openTimeline(descriptor as HostFields<'signaler'>, fds, sender),
  discard: (object) => object.close(),
  keep(object, name) {
    const release = object.addKeepalive(name);
    // It is sent once.
    object.close();
    return release;
  },
};

const pinned: ShareableKind<PinnedBuffer> = {
  name: 'pinned',
  descriptorKinds: ['pinned'],
  isInstance: (object) => object instanceof PinnedBuffer,
  isImported: () => false,
  isConstant: () => true,
  contextOf: ({ context }) => context,
  export: exportPinned,
  import: (descriptor, fds, options, sender) =>
    openPinned(descriptor as HostFields<'pinned'>, fds, options, sender),
  discard: (object) => object.close(),
  keep: keepUntilClosed,
};

const channel: ShareableKind<Channel> = {
  name: 'channel',
  descriptorKinds: ['channel'],
  isInstance: (object) => object instanceof Channel,
  isImported: () => false,
  isConstant: () => true,
  export: exportChannel,
  import: (descriptor, fds, options, sender) =>
    openChannel(descriptor as HostFields<'channel'>, fds, options, sender),
  discard: (object) => object.close(),
  isOpened: (object) => object instanceof ChannelConsumer,
  keep: (object, name) => object.exported.addSeat(name),
  memoryOf: ({ memory }) => memory,
  fdsForPeer: ({ exported }) => exported.takeSeatFds(),
};

/** The table. */
export const shareableKinds: ShareableKind[] = [
  memory,
  pool,
  event,
  timeline,
  signaler,
  pinned,
  channel,
];

function rowOf(object: object): ShareableKind | undefined {
  for (const kind of shareableKinds) if (kind.isInstance(object)) return kind;
  return undefined;
}

const rowOfDescriptor = (kind: IpcKind | HostKind): ShareableKind =>
  shareableKinds.find((row) => row.descriptorKinds.includes(kind)) as ShareableKind;

// ---- What holds for objects of all kinds ----

/** Whether the object is of a kind that can be shared. It may still be refused. */
export const isShareable = (object: object): object is Shareable => rowOf(object) !== undefined;

/** What kind of object it is, in one word. */
export const kindNameOf = (object: Shareable): ObjectKindName =>
  (rowOf(object) as ShareableKind).name;

export const isShareableMemory = memory.isInstance as (object: object) => object is ShareableMemory;

/** The buffer that an object is, or lies in. */
export const bufferOf = (object: object): DeviceBuffer | undefined =>
  rowOf(object)?.bufferOf?.(object);

/** Whether another process made the object. */
export const isImported = (object: object): boolean => rowOf(object)?.isImported(object) ?? false;

/** Exports an object. @throws IpcError, ClosedError, RangeError for memory without bytes */
export const exportObject = (object: Shareable): AnyExported =>
  (rowOf(object) as ShareableKind).export(object);

/** Whether the export of an object is the same each time, while it is open. */
export const isExportConstant = (object: Shareable): boolean =>
  rowOf(object)?.isConstant?.(object) ?? false;

/** Opens what another process exported. See {@link ShareableKind.import}. @throws IpcError */
export const importObject = (
  descriptor: AnyFields,
  ...rest: [fds: ReceivedFds, options: Omit<OpenOptions, 'fds'>, sender: Sender]
): object => rowOfDescriptor(descriptor.kind).import(descriptor, ...rest);

/** Closes an imported object that nobody received. A pool that others use stays open. */
export const discardImported = (object: object): void => {
  const opened = shareableKinds.find((row) => row.isOpened?.(object));
  (opened ?? rowOf(object))?.discard(object);
};

/**
 * The resource that owns the memory of an object, which must not be freed while the object is
 * shared.
 */
export function ownerOf(object: Shareable): Resource {
  const buffer = bufferOf(object);
  if (!buffer) return rowOf(object)?.memoryOf?.(object) ?? object;
  return buffer.keepalive instanceof VirtualMemory ? buffer.keepalive : buffer.root;
}

/** A range of addresses and its access. */
export interface AddressRange {
  readonly begin: number;
  readonly end: number;
  readonly access: Access;
}

/** The address range of an object; for an array, that of its items. */
export function rangeOf(object: Shareable): AddressRange | undefined {
  const buffer = bufferOf(object);
  return buffer && rangeIn(buffer, object);
}

/** The file descriptors of an object for one process. See {@link ShareableKind.fdsForPeer}. */
export const fdsForPeer = (object: Shareable): readonly number[] =>
  rowOf(object)?.fdsForPeer?.(object) ?? [];

function rangeIn(
  { readableAddress: address, byteLength, access }: DeviceBuffer,
  object: Shareable,
): AddressRange {
  if (!(object instanceof DeviceArray))
    return { begin: address, end: address + byteLength, access };
  const { low, high } = layoutExtents(object.layout);
  return {
    begin: address + low,
    end: address + high,
    access: object.readOnly ? 'read' : access,
  };
}

/** The context whose streams use an object; undefined for objects that no stream uses. */
export function contextOf(object: object): Context | undefined {
  const row = rowOf(object);
  return row?.contextOf ? row.contextOf(object) : row?.bufferOf?.(object).context;
}

/** The stream that uses an object by default. */
export const defaultStreamOf = (object: object): Stream | undefined =>
  object instanceof DeviceArray && object.stream?.closed === false ? object.stream : undefined;

/** An object that is kept for another process. */
export interface KeptObject {
  readonly kind: ObjectKindName;
  /** The resource that owns its memory: see {@link ownerOf}. */
  readonly owner: Resource;
  /** How many bytes of memory it keeps allocated. */
  readonly byteLength: number;
  /** The context whose streams use it; undefined if no stream does. */
  readonly context: Context | undefined;
  readonly range: AddressRange | undefined;
  /** Ends the keeping. */
  release(): void;
}

/**
 * Keeps what an object owns, and its pool, from being freed until it is released.
 *
 * @param name who keeps it, for error messages
 * @throws ClosedError
 */
export function keepObject(object: Shareable, name: string): KeptObject {
  const { name: kind, bufferOf: find, keep, memoryOf } = rowOf(object) as ShareableKind;
  const buffer = find?.(object);
  const hidden = memoryOf?.(object);
  if (!buffer)
    return {
      kind,
      owner: hidden ?? object,
      byteLength:
        hidden?.mappedByteLength ?? (object instanceof PinnedBuffer ? object.byteLength : 0),
      context: contextOf(object),
      range: hidden && rangeIn(hidden.buffer, object),
      release: keep ? keep(object, name) : object.addKeepalive(name),
    };
  const owner = buffer.keepalive instanceof VirtualMemory ? buffer.keepalive : buffer.root;
  return {
    kind,
    owner,
    byteLength: owner instanceof VirtualMemory ? owner.mappedByteLength : owner.byteLength,
    context: buffer.context,
    range: rangeIn(buffer, object),
    release: keepMemoryAlive(buffer, name),
  };
}

/** Lets the other threads of this process open exported memory. @throws ClosedError */
export function publishToThreads(object: Shareable, descriptor: DescriptorFields): void {
  const range = rangeOf(object);
  if (range && descriptor.kind !== 'event')
    publish(bufferOf(object) as DeviceBuffer, range.begin, descriptor);
}

// ---- Memory ----

function memoryBufferOf(object: ShareableMemory): DeviceBuffer {
  return object instanceof DeviceBuffer ? object : object.buffer;
}

function exportMemory(object: ShareableMemory): ExportedFields {
  if (!(object instanceof DeviceArray)) return exportBuffer(memoryBufferOf(object));
  let fds: readonly number[] = [];
  const descriptor = exportArray(object, (part) => {
    const exported = exportBuffer(part);
    ({ fds } = exported);
    return exported.descriptor as MemoryFields;
  });
  return { descriptor, fds };
}

/** Exports a buffer in the way that its memory allows, or as it came from another process. */
function exportBuffer(buffer: DeviceBuffer): ExportedFields {
  const { readableAddress: address, byteLength, resource, keepalive, origin } = buffer;
  if (byteLength === 0) throw new RangeError(`an empty buffer (at ${address}) cannot be shared`);
  const source = importSourceOfBuffer(buffer);
  if (source) return reexportBuffer(buffer, source);
  if (resource instanceof MemoryPool) return exportPoolMemory(buffer, resource);
  if (origin === 'allocated' && keepalive instanceof VirtualMemory)
    return exportVirtual(buffer, keepalive);
  return { descriptor: exportLegacy(buffer), fds: [] };
}

/** Exports a buffer by its legacy handle. @throws IpcError for memory without one, RangeError for an empty one */
export function exportLegacyBuffer(buffer: DeviceBuffer): DescriptorFields<'legacy'> {
  if (buffer.resource instanceof MemoryPool || buffer.resource instanceof ImportedPool)
    throw new IpcError(
      'memory of a pool has no legacy IPC handle: share it with exportIpc, or send it with peer.send, ' +
        'or allocate it as plain device memory (DeviceBuffer.allocate without { memory }, or DeviceMemory)',
    );
  const source = importSourceOfBuffer(buffer);
  if (!source) return exportLegacy(buffer);
  if (source.descriptor.kind !== 'legacy')
    throw new IpcError('imported virtual memory has no legacy IPC handle: share it with exportIpc');
  return exportBuffer(buffer).descriptor as DescriptorFields<'legacy'>;
}

/** The import source of an imported buffer. */
const importSourceOfBuffer = ({
  origin,
  root,
}: DeviceBuffer): ImportSource<MemoryFields> | undefined =>
  origin === 'imported'
    ? (knownFacts(root)?.source as ImportSource<MemoryFields> | undefined)
    : undefined;

// ---- Pools ----

function reexportPool(imported: ImportedPool): ExportedFields {
  imported.assertOpen();
  return { descriptor: imported.descriptor, fds: [imported.shared.fd] };
}
