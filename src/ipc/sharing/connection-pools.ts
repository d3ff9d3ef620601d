/** The pools that both ends of a connection have of each other: their file descriptors are sent once. */

import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { CudaError, IpcError } from '../../errors.ts';
import { releaseOrWarn } from '../../lifetime.ts';
import { MemoryPool } from '../../memory/pool.ts';
import type { DescriptorFields } from '../descriptor.ts';
import { isFromThisProcess, localProcess } from '../identity.ts';
import { ImportedPool } from './imported-pool.ts';
import type { EncodedExport, OwnedFds, ReceivedFds, SharingSession } from './kind.ts';
import { bufferIn, isShareableMemory } from './memory.ts';

// ---- Pools that are sent ----

/** Leaves out the file descriptor of a pool that the peer already has, and remembers the others. */
export function poolForPeer(
  object: object,
  encoded: EncodedExport,
  session: SharingSession,
): EncodedExport {
  const { descriptor, bytes } = encoded;
  const { pool } = descriptor as DescriptorFields<'pool'>;
  if (session.sentPools.has(pool)) return { descriptor, bytes, fds: [] };
  session.sentPools.set(pool, subscribeToPoolClose(object, pool, session));
  return encoded;
}

/** Notifies the session when the pool of an object is closed. */
function subscribeToPoolClose(object: object, id: string, session: SharingSession): () => void {
  const pool = isShareableMemory(object) ? bufferIn(object).root.resource : object;
  if (!(pool instanceof MemoryPool || pool instanceof ImportedPool)) return () => {};
  const { onClose: onEnd } = pool instanceof MemoryPool ? pool.share() : pool.shared;
  const onClose = (): void => {
    session.sentPools.delete(id);
    session.onPoolClosed(id);
  };
  onEnd.add(onClose);
  return () => onEnd.delete(onClose);
}

// ---- Pools that arrive ----

/**
 * More pools than a program has. A hostile peer must not exhaust this process's file descriptors.
 */
const MAX_RECEIVED_POOLS = 1024;

/** Opens a pool or memory of one, with the file descriptor that came with it or before. */
export function poolFromPeer<O extends object>(
  fields: DescriptorFields<'pool'>,
  owned: OwnedFds,
  session: SharingSession,
  open: (fds: ReceivedFds) => O,
): O {
  // Objects of this process never need the pool's file descriptor.
  if (isFromThisProcess(fields)) return open(owned);
  const pool = receivePool(fields, owned, session);
  try {
    const opened = open(pool ?? owned);
    pool?.keep(opened);
    return opened;
  } catch (error) {
    // The file descriptor is sent only once: it is kept for the pool's next memory, unless it is
    // not a pool's.
    if (pool && isPoolImportFailure(error)) releaseImportedPool(fields.pool, session);
    throw error;
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
    throw new IpcError(
      `more than ${MAX_RECEIVED_POOLS} memory pools came over one connection`,
      undefined,
      'limit-exceeded',
    );
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
    const pool = isShareableMemory(opened) ? bufferIn(opened).resource : opened;
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
