/** Exports objects for a connection, and imports those that it receives. */

import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { DeviceArray } from '../../array/device-array.ts';
import { CudaError, IpcError } from '../../errors.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { DeviceBuffer } from '../../memory/buffer.ts';
import { MemoryPool } from '../../memory/pool.ts';
import type { VirtualMemory } from '../../memory/virtual.ts';
import {
  type AnyExported,
  type AnyFields,
  type DescriptorFields,
  isHostFields,
} from '../descriptor.ts';
import { encodeFields } from '../descriptor-codec.ts';
import { isFromThisProcess, localProcess } from '../identity.ts';
import type { SendingProcess } from '../timeline/timeline-state.ts';
import { type ImportLease, OwnedFds, type ReceivedFds, type Sender } from './imported-object.ts';
import { ImportedPool } from './imported-pool.ts';
import {
  bufferOf,
  exportObject,
  fdsForPeer,
  importObject,
  isExportConstant,
  isShareable,
  ownerOf,
  publishToThreads,
  type Shareable,
} from './kinds.ts';

/** An exported object as a connection sends it. */
export interface EncodedExport extends AnyExported {
  /** The encoded fields: what is put on the wire. */
  readonly bytes: Uint8Array;
  /** Those of the file descriptors that are closed once they are sent. Default: none. */
  readonly ownFds?: readonly number[];
}

/** What one end of a connection remembers about the other, e.g. which pools it already has. */
export interface SharingSession {
  /**
   * Pools already sent to this peer, each with a function that unsubscribes from its close event.
   */
  readonly sentPools: Map<string, () => void>;
  readonly receivedPools: Map<string, unknown>;
  /**
   * The process at the other end, as the kernel states it. Its pid is 0 if it is not visible here.
   */
  readonly process?: SendingProcess;
  /** Tells the other end that a pool was closed. */
  onPoolClosed(pool: string): void;
  /** See {@link Sender.hasLeaseOn}. */
  hasLeaseOn: Sender['hasLeaseOn'];
  /** See {@link Sender.hasLeaseOnCollected}. Default: no. */
  hasLeaseOnCollected?: Sender['hasLeaseOnCollected'];
}

/** A session in which nothing was sent or received, and nobody is notified. */
export const emptySharingSession = (): SharingSession => ({
  sentPools: new Map(),
  receivedPools: new Map(),
  onPoolClosed() {},
  hasLeaseOn: () => false,
});

/**
 * More pools than a program has. A hostile peer must not exhaust this process's file descriptors.
 */
const MAX_RECEIVED_POOLS = 1024;

/**
 * Exports an object for one peer; undefined if it is not a kind that can be shared. @throws
 * IpcError
 */
export function exportForPeer(object: object, session: SharingSession): EncodedExport | undefined {
  return isShareable(object)
    ? prepareForPeer(session, object, exportForAnyPeer(object))
    : undefined;
}

/** Exports an object for any process. May call a memory manager. @throws IpcError, ClosedError */
export function exportForAnyPeer(object: Shareable): EncodedExport {
  // Also checked for what was exported before: queued work must come before it.
  assertNotCapturing('sharing');
  const known = (object as WithEncodedExport)[ENCODED_EXPORT];
  if (known && !object.closed) return known;
  const { descriptor, fds } = exportObject(object);
  const encoded = { descriptor, fds, bytes: encodeFields(descriptor) };
  if (isExportConstant(object)) (object as WithEncodedExport)[ENCODED_EXPORT] = encoded;
  return encoded;
}

// Stored on the object: a WeakMap with an entry for each would slow down garbage collection.
const ENCODED_EXPORT = Symbol('encodedExport');

interface WithEncodedExport {
  [ENCODED_EXPORT]?: EncodedExport;
}

/**
 * Prepares an exported object for one peer, and remembers that the peer has its pool. The result
 * must be sent before anything else is exported.
 */
export function prepareForPeer(
  session: SharingSession,
  object: Shareable,
  encoded: EncodedExport,
): EncodedExport {
  const { descriptor, bytes } = encoded;
  if (isHostFields(descriptor)) {
    if (descriptor.kind === 'channel' && isOwnProcess(session))
      publishToThreads(ownerOf(object) as VirtualMemory, descriptor.memory);
    const ownFds = fdsForPeer(object);
    return ownFds.length > 0 ? { ...encoded, fds: [...ownFds, ...encoded.fds], ownFds } : encoded;
  }
  if (isOwnProcess(session)) publishToThreads(object, descriptor);
  if (descriptor.kind !== 'pool') return encoded;
  if (session.sentPools.has(descriptor.pool)) return { descriptor, bytes, fds: [] };
  session.sentPools.set(descriptor.pool, subscribeToPoolClose(object, descriptor.pool, session));
  return encoded;
}

/** Whether the other end is a thread of this process. */
const isOwnProcess = (session: SharingSession): boolean => session.process?.pid === process.pid;

/** Notifies the session when the pool of an object is closed. */
function subscribeToPoolClose(object: Shareable, id: string, session: SharingSession): () => void {
  const pool = bufferOf(object)?.root.resource ?? object;
  if (!(pool instanceof MemoryPool || pool instanceof ImportedPool)) return () => {};
  const { onClose: onEnd } = pool instanceof MemoryPool ? pool.share() : pool.shared;
  const onClose = (): void => {
    session.sentPools.delete(id);
    session.onPoolClosed(id);
  };
  onEnd.add(onClose);
  return () => onEnd.delete(onClose);
}

/**
 * Imports an object that another process exported. Takes ownership of `fds` in every case, and
 * closes those that it does not keep.
 *
 * An object that returns to the process that made it is an alias of the original, if the peer has a
 * lease on it.
 *
 * @throws IpcError
 */
export function importFromPeer(
  descriptor: AnyFields,
  fds: readonly number[],
  session: SharingSession,
  lease?: ImportLease,
): object {
  const owned = new OwnedFds(fds, false);
  try {
    // The connection has checked the credentials of its other end.
    const options = { allowOtherUsers: true, sameProcess: 'alias' } as const;
    const sender: Sender = {
      lease,
      process: session.process,
      isOwnProcess: isOwnProcess(session),
      hasLeaseOn: (object) => session.hasLeaseOn(object),
      hasLeaseOnCollected: (name) => session.hasLeaseOnCollected?.(name) ?? false,
    };
    // Objects of this process never need the pool's file descriptor.
    if (isHostFields(descriptor) || descriptor.kind !== 'pool' || isFromThisProcess(descriptor))
      return importObject(descriptor, owned, options, sender);
    const pool = receivePool(descriptor, owned, session);
    try {
      const opened = importObject(descriptor, pool ?? owned, options, sender);
      pool?.keep(opened);
      return opened;
    } catch (error) {
      // The file descriptor is sent only once: it is kept for the pool's next memory, unless it is
      // not a pool's.
      if (pool && isPoolImportFailure(error)) releaseImportedPool(descriptor.pool, session);
      throw error;
    }
  } finally {
    owned[Symbol.dispose]();
  }
}

const isPoolImportFailure = (error: unknown): boolean =>
  error instanceof IpcError &&
  (error.code === 'no-file-descriptor' ||
    (error.cause instanceof CudaError &&
      error.cause.call === 'cuMemPoolImportFromShareableHandle'));

/** Releases what a session keeps. Call it when its connection ends. */
export function closeSharingSession(session: SharingSession): void {
  for (const id of session.receivedPools.keys()) releaseImportedPool(id, session);
  for (const unsubscribe of session.sentPools.values()) unsubscribe();
  session.sentPools.clear();
}

/** Releases a pool that its exporter has closed. */
function releaseImportedPool(
  id: string,
  { receivedPools }: Pick<SharingSession, 'receivedPools'>,
): void {
  const pool = receivedPools.get(id);
  receivedPools.delete(id);
  if (pool instanceof ReceivedPool) closePoolQuietly(pool);
}

/** A driver error here concerns neither the received value nor the other pools. */
const closePoolQuietly = (pool: ReceivedPool): void => releaseOrWarn(() => pool[Symbol.dispose]());

/** Their file descriptors are still open, and a hostile peer must not accumulate many. */
const MAX_DEFERRED_RELEASES = 16;
let deferredReleases = 0;

/**
 * Like {@link releaseImportedPool}, but on the next tick: destroying a pool is slow and must not
 * delay the value that arrived in the same message. The id of a pool is never reused.
 */
export function releaseImportedPoolLater(
  id: string,
  { receivedPools }: Pick<SharingSession, 'receivedPools'>,
): void {
  const pool = receivedPools.get(id);
  receivedPools.delete(id);
  if (!(pool instanceof ReceivedPool)) return;
  if (deferredReleases === MAX_DEFERRED_RELEASES) {
    closePoolQuietly(pool);
    return;
  }
  deferredReleases += 1;
  setImmediate(() => {
    deferredReleases -= 1;
    closePoolQuietly(pool);
  });
}

/** Returns the pool with that id. A pool that comes with its file descriptor is remembered. */
function receivePool(
  { pool: id, pid, pidNamespace }: DescriptorFields<'pool'>,
  owned: OwnedFds,
  { receivedPools, process: sender }: SharingSession,
): ReceivedPool | undefined {
  const known = receivedPools.get(id);
  if (known instanceof ReceivedPool) return known;
  if (owned.numbers.length !== 1) return undefined;
  if (receivedPools.size >= MAX_RECEIVED_POOLS)
    throw new IpcError(`more than ${MAX_RECEIVED_POOLS} memory pools came over one connection`);
  const [fd] = owned.take();
  const isSentByMaker = pid === sender?.pid && pidNamespace === localProcess().pidNamespace;
  const pool = new ReceivedPool(fd as number, isSentByMaker);
  receivedPools.set(id, pool);
  return pool;
}

/**
 * A pool that came over a connection. Its file descriptor is sent once, and its memory any number
 * of times. It stays open for its next memory until the connection ends.
 */
class ReceivedPool implements ReceivedFds, Disposable {
  readonly numbers: readonly number[];
  readonly isNameTrusted: boolean;
  #pool: ImportedPool | undefined;

  /**
   * @param fd the pool's, owned by this object from now on
   * @param isNameTrusted whether the pool's maker sent it
   */
  constructor(fd: number, isNameTrusted: boolean) {
    this.numbers = [fd];
    this.isNameTrusted = isNameTrusted;
  }

  /** Returns nothing, because the next memory of the pool needs the file descriptor too. */
  take(): readonly number[] {
    return [];
  }

  /** Keeps the opened pool, or the pool of the opened memory. */
  keep(opened: object): void {
    const memory = opened instanceof DeviceArray ? opened.buffer : opened;
    const pool = memory instanceof DeviceBuffer ? memory.resource : memory;
    if (!(pool instanceof ImportedPool) || pool === this.#pool) return;
    pool.addUser();
    this.#pool?.removeUser();
    this.#pool = pool;
  }

  [Symbol.dispose](): void {
    const [fd] = this.numbers;
    discardFd(fd as number);
    const pool = this.#pool;
    this.#pool = undefined;
    pool?.removeUser();
  }
}
