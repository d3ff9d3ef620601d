/** The seam between what is shared and the connection that carries it. */

import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { DeviceArray } from '../../array/device-array.ts';
import { CudaError, IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { DeviceBuffer } from '../../memory/buffer.ts';
import { MemoryPool } from '../../memory/pool.ts';
import type { Exported, IpcDescriptor, IpcPoolDescriptor } from '../descriptor.ts';
import { writeDescriptor } from '../descriptor-bytes.ts';
import { parseDescriptor } from '../descriptor-codec.ts';
import { isFromThisProcess, localProcess } from '../identity.ts';
import { bufferOf, isShareable, rangeOf, type Shareable } from '../shareable.ts';
import { exportObject } from './export.ts';
import { openObject } from './import.ts';
import { ImportedPool } from './imported-pool.ts';
import type { ImportLease, Sender } from './ownership.ts';
import { OwnedFds, type ReceivedFds } from './received-fds.ts';
import { publish } from './worker-exports.ts';

/** A parcel as it goes through a connection. */
export interface EncodedExport extends Exported {
  /** The descriptor's, of what goes out again and again. */
  bytes: Buffer | undefined;
}

/** What two ends of one connection remember for each other, e.g. which pools the other end has. */
export interface SharingSession {
  /** The pools that the other end has from here, and how to listen no more for their ends. */
  readonly sentPools: Map<string, () => void>;
  readonly receivedPools: Map<string, unknown>;
  /** The process at the other end, as the kernel says it; its pid is 0 where that is not seen. */
  readonly process?: { readonly pid: number };
  /** Tells the other end that a pool is there no more. */
  onPoolClosed(pool: string): void;
  /** As {@link Sender.hasLeaseOn}. */
  hasLeaseOn: Sender['hasLeaseOn'];
}

/** Where nothing was sent or received yet, and nobody is told anything. */
export const emptySharingSession = (): SharingSession => ({
  sentPools: new Map(),
  receivedPools: new Map(),
  onPoolClosed() {},
  hasLeaseOn: () => false,
});

/** More pools than a program has; a hostile peer must not fill this process's table of files. */
const MAX_RECEIVED_POOLS = 1024;

/** An object for another process; undefined for one that is not ours to share. @throws IpcError */
export function exportForPeer(object: object, session: SharingSession): EncodedExport | undefined {
  return isShareable(object)
    ? prepareForPeer(session, object, exportForAnyPeer(object))
    : undefined;
}

/** An object for any process: a memory manager may be called for it. @throws IpcError, ClosedError */
export function exportForAnyPeer(object: Shareable): EncodedExport {
  // Also what was shared before: work that is queued is to come before it.
  assertNotCapturing('sharing');
  return encodedExportOf(object);
}

/**
 * What goes to the other end of a connection for an object, which remembers that it has the pool
 * from then on: it must go out before anything else does.
 */
export function prepareForPeer(
  session: SharingSession,
  object: Shareable,
  encoded: EncodedExport,
): EncodedExport {
  const { descriptor, bytes } = encoded;
  if (isOwnProcess(session)) publishToThreads(object, descriptor);
  if (descriptor.kind !== 'pool') return encoded;
  if (session.sentPools.has(descriptor.pool)) return { descriptor, bytes, fds: [] };
  session.sentPools.set(descriptor.pool, subscribeToPoolClose(object, descriptor.pool, session));
  return encoded;
}

/** Whether the other end is a thread of this process. */
const isOwnProcess = (session: SharingSession): boolean => session.process?.pid === process.pid;

function publishToThreads(object: Shareable, descriptor: IpcDescriptor): void {
  const buffer = bufferOf(object);
  const range = rangeOf(object);
  if (buffer && range && descriptor.kind !== 'event') publish(buffer, range.begin, descriptor);
}

/** Has the session told when the pool that an object is, or is memory of, is there no more. */
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

// On the object itself: a WeakMap with an entry for each would keep the collector busy.
const ENCODED_EXPORT = Symbol('packed');

interface WithEncodedExport {
  [ENCODED_EXPORT]?: EncodedExport;
}

function encodedExportOf(object: Shareable): EncodedExport {
  const isRange = object instanceof DeviceBuffer || object instanceof DeviceArray;
  // What others own may be freed and be something else since.
  if (!isRange || bufferOf(object)?.origin === 'borrowed') return exportAnew(object);
  const range = object as WithEncodedExport;
  const known = object.closed ? undefined : range[ENCODED_EXPORT];
  if (known) {
    known.bytes ??= Buffer.from(writeDescriptor(known.descriptor));
    return known;
  }
  const encoded = exportAnew(object);
  range[ENCODED_EXPORT] = encoded;
  return encoded;
}

function exportAnew(object: Shareable): EncodedExport {
  const { descriptor, fds } = exportObject(object);
  return { descriptor, bytes: undefined, fds };
}

/**
 * The object that another process packed. Takes ownership of `fds` in every case: closes what it
 * does not keep.
 *
 * What comes back to the process that made it is an alias of the original, where the other end has
 * it by a lease.
 *
 * @throws IpcError
 */
export function importFromPeer(
  descriptor: unknown,
  fds: readonly number[],
  session: SharingSession,
  lease?: ImportLease,
): object {
  const owned = new OwnedFds(fds, false);
  try {
    const parsed = parseDescriptor(descriptor);
    // The connection has seen to who is at its other end.
    const options = { allowOtherUsers: true, sameProcess: 'alias' } as const;
    const sender: Sender = {
      lease,
      isOwnProcess: isOwnProcess(session),
      hasLeaseOn: (object) => session.hasLeaseOn(object),
    };
    // What is this process's own needs no descriptor of the pool, now or later.
    if (parsed.kind !== 'pool' || isFromThisProcess(parsed))
      return openObject(parsed, owned, options, sender);
    const pool = receivePool(parsed, owned, session);
    try {
      const opened = openObject(parsed, pool ?? owned, options, sender);
      pool?.keep(opened);
      return opened;
    } catch (error) {
      // It does not come again: it is kept for the next memory of the pool, if it is of a pool.
      if (pool && isPoolImportFailure(error)) releaseImportedPool(parsed.pool, session);
      throw error;
    }
  } finally {
    owned[Symbol.dispose]();
  }
}

/** Closes what was unpacked for nobody; a pool that is somebody's already is left to them. */
export function discardImported(object: object): void {
  if (object instanceof ImportedPool) object.closeUnclaimed();
  const isOurs =
    object instanceof DeviceBuffer || object instanceof DeviceArray || object instanceof CudaEvent;
  if (isOurs) object.close();
}

const isPoolImportFailure = (error: unknown): boolean =>
  error instanceof IpcError &&
  (error.code === 'no-file-descriptor' ||
    (error.cause instanceof CudaError &&
      error.cause.call === 'cuMemPoolImportFromShareableHandle'));

/** Lets go of what a connection has kept: call it when that ends. */
export function closeSharingSession(session: SharingSession): void {
  for (const id of session.receivedPools.keys()) releaseImportedPool(id, session);
  for (const unsubscribe of session.sentPools.values()) unsubscribe();
  session.sentPools.clear();
}

/** Lets go of a pool that the other end has no more. */
function releaseImportedPool(
  id: string,
  { receivedPools }: Pick<SharingSession, 'receivedPools'>,
): void {
  const pool = receivedPools.get(id);
  receivedPools.delete(id);
  if (pool instanceof ReceivedPool) closePoolQuietly(pool);
}

/** What the driver refuses concerns neither what comes nor the other pools. */
const closePoolQuietly = (pool: ReceivedPool): void => releaseOrWarn(() => pool[Symbol.dispose]());

/** They have their descriptors still, and a hostile peer must not make many of them. */
const MAX_DEFERRED_RELEASES = 16;
let deferredReleases = 0;

/**
 * As {@link releaseImportedPool}, after this turn: its end takes longer than to give out the value that the
 * news of it came with. Another pool never comes by its identity.
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

/** The pool by that identity; one that comes with its descriptor is remembered. */
function receivePool(
  { pool: id, pid, pidNamespace }: IpcPoolDescriptor,
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
 * A pool that came over a connection: its file descriptor comes once, and memory of it any number
 * of times. It stays open for the next memory of it, until the connection ends.
 */
class ReceivedPool implements ReceivedFds, Disposable {
  readonly numbers: readonly number[];
  readonly isNameTrusted: boolean;
  #pool: ImportedPool | undefined;

  /**
   * @param fd the pool's, which becomes this object's
   * @param isNameTrusted whether its maker has sent it
   */
  constructor(fd: number, isNameTrusted: boolean) {
    this.numbers = [fd];
    this.isNameTrusted = isNameTrusted;
  }

  /** Nobody takes it: it is there for the next one too. */
  take(): readonly number[] {
    return [];
  }

  /** Keeps what was opened: the pool, or the one that memory is of. */
  keep(opened: object): void {
    const memory = opened instanceof DeviceArray ? opened.buffer : opened;
    const pool = memory instanceof DeviceBuffer ? memory.resource : memory;
    if (!(pool instanceof ImportedPool) || pool === this.#pool) return;
    pool.retainForConnection();
    this.#pool?.releaseForConnection();
    this.#pool = pool;
  }

  [Symbol.dispose](): void {
    const [fd] = this.numbers;
    discardFd(fd as number);
    const pool = this.#pool;
    this.#pool = undefined;
    pool?.releaseForConnection();
  }
}
