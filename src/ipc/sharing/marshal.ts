/** The seam between what is shared and the connection that carries it. */

import { discardFd } from '../../../ffi/linux/close-fd.ts';
import { DeviceArray } from '../../array/device-array.ts';
import { CudaError, IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import { refuseInCapture } from '../../graph-capture.ts';
import { releaseQuietly } from '../../lifetime.ts';
import { DeviceBuffer } from '../../memory/buffer.ts';
import { MemoryPool } from '../../memory/pool.ts';
import { type IpcDescriptor, type IpcPoolDescriptor, parseDescriptor } from '../descriptor.ts';
import { writeDescriptor } from '../descriptor-codec.ts';
import { here, isOwn } from '../identity.ts';
import { bufferOf, rangeOf } from '../shareable.ts';
import { isShareable, parcelOf, type Shareable } from './export.ts';
import { openObject } from './import.ts';
import type { Loan, Sender } from './ownership.ts';
import { ImportedPool } from './pool.ts';
import { OwnedFds, type ReceivedFds } from './received-fds.ts';
import { publish } from './worker-exports.ts';

/** What goes to another process for one object: plain data, and file descriptors beside it. */
export interface Parcel {
  readonly descriptor: IpcDescriptor;
  /** Borrowed: the sender keeps them open and does not close them. */
  readonly fds: readonly number[];
}

/** A parcel as it goes through a connection. */
export interface Packed extends Parcel {
  /** The descriptor's, of what goes out again and again. */
  bytes: Buffer | undefined;
}

/** What two ends of one connection remember for each other, e.g. which pools the other end has. */
export interface ParcelSession {
  /** The pools that the other end has from here, and how to listen no more for their ends. */
  readonly sent: Map<string, () => void>;
  readonly received: Map<string, unknown>;
  /** The process at the other end, as the kernel says it; its pid is 0 where that is not seen. */
  readonly process?: { readonly pid: number };
  /** Tells the other end that a pool is there no more. */
  poolEnded(pool: string): void;
  /** As {@link Sender.has}. */
  has: Sender['has'];
}

/** Where nothing was sent or received yet, and nobody is told anything. */
export const emptySession = (): ParcelSession => ({
  sent: new Map(),
  received: new Map(),
  poolEnded() {},
  has: () => false,
});

/** More pools than a program has; a hostile peer must not fill this process's table of files. */
const MAX_RECEIVED_POOLS = 1024;

/** An object for another process; undefined for one that is not ours to share. @throws IpcError */
export function pack(object: object, session: ParcelSession): Packed | undefined {
  return isShareable(object) ? packFor(session, object, packAlone(object)) : undefined;
}

/** An object for any process: a memory manager may be called for it. @throws IpcError, ClosedError */
export function packAlone(object: Shareable): Packed {
  // Also what was shared before: work that is queued is to come before it.
  refuseInCapture('sharing');
  return packedOf(object);
}

/**
 * What goes to the other end of a connection for an object, which remembers that it has the pool
 * from then on: it must go out before anything else does.
 */
export function packFor(session: ParcelSession, object: Shareable, packed: Packed): Packed {
  const { descriptor, bytes } = packed;
  if (isOwnProcess(session)) publishObject(object, descriptor);
  if (descriptor.kind !== 'pool') return packed;
  if (session.sent.has(descriptor.pool)) return { descriptor, bytes, fds: [] };
  session.sent.set(descriptor.pool, hearEnd(object, descriptor.pool, session));
  return packed;
}

/** Whether the other end is a thread of this process. */
const isOwnProcess = (session: ParcelSession): boolean => session.process?.pid === process.pid;

function publishObject(object: Shareable, descriptor: IpcDescriptor): void {
  const buffer = bufferOf(object);
  const range = rangeOf(object);
  if (buffer && range && descriptor.kind !== 'event') publish(buffer, range.begin, descriptor);
}

/** Has the session told when the pool that an object is, or is memory of, is there no more. */
function hearEnd(object: Shareable, id: string, session: ParcelSession): () => void {
  const pool = bufferOf(object)?.whole.resource ?? object;
  if (!(pool instanceof MemoryPool || pool instanceof ImportedPool)) return () => {};
  const { onEnd } = pool instanceof MemoryPool ? pool.share() : pool.shared;
  const tell = (): void => {
    session.sent.delete(id);
    session.poolEnded(id);
  };
  onEnd.add(tell);
  return () => onEnd.delete(tell);
}

// On the object itself: a WeakMap with an entry for each would keep the collector busy.
const PACKED = Symbol('packed');

interface Range {
  [PACKED]?: Packed;
}

function packedOf(object: Shareable): Packed {
  const isRange = object instanceof DeviceBuffer || object instanceof DeviceArray;
  // What others own may be freed and be something else since.
  if (!isRange || bufferOf(object)?.origin === 'borrowed') return packAnew(object);
  const range = object as Range;
  const known = object.closed ? undefined : range[PACKED];
  if (known) {
    known.bytes ??= Buffer.from(writeDescriptor(known.descriptor));
    return known;
  }
  const packed = packAnew(object);
  range[PACKED] = packed;
  return packed;
}

function packAnew(object: Shareable): Packed {
  const { descriptor, fds } = parcelOf(object);
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
export function unpack(
  descriptor: unknown,
  fds: readonly number[],
  session: ParcelSession,
  loan?: Loan,
): object {
  const owned = new OwnedFds(fds, false);
  try {
    const sound = parseDescriptor(descriptor);
    // The connection has seen to who is at its other end.
    const options = { allowOtherUsers: true, sameProcess: 'alias' } as const;
    const sender: Sender = {
      loan,
      isOwnProcess: isOwnProcess(session),
      has: (object) => session.has(object),
    };
    // What is this process's own needs no descriptor of the pool, now or later.
    if (sound.kind !== 'pool' || isOwn(sound)) return openObject(sound, owned, options, sender);
    const pool = receivePool(sound, owned, session);
    try {
      const opened = openObject(sound, pool ?? owned, options, sender);
      pool?.keep(opened);
      return opened;
    } catch (error) {
      // It does not come again: it is kept for the next memory of the pool, if it is of a pool.
      if (pool && isNoPool(error)) forgetPool(sound.pool, session);
      throw error;
    }
  } finally {
    owned[Symbol.dispose]();
  }
}

/** Closes what was unpacked for nobody; a pool that is somebody's already is left to them. */
export function discard(object: object): void {
  if (object instanceof ImportedPool) object.discard();
  const isOurs =
    object instanceof DeviceBuffer || object instanceof DeviceArray || object instanceof CudaEvent;
  if (isOurs) object.close();
}

const isNoPool = (error: unknown): boolean =>
  error instanceof IpcError &&
  (error.code === 'no-file-descriptor' ||
    (error.cause instanceof CudaError &&
      error.cause.call === 'cuMemPoolImportFromShareableHandle'));

/** Lets go of what a connection has kept: call it when that ends. */
export function endSession(session: ParcelSession): void {
  for (const id of session.received.keys()) forgetPool(id, session);
  for (const listenNoMore of session.sent.values()) listenNoMore();
  session.sent.clear();
}

/** Lets go of a pool that the other end has no more. */
function forgetPool(id: string, { received }: Pick<ParcelSession, 'received'>): void {
  const pool = received.get(id);
  received.delete(id);
  if (pool instanceof ReceivedPool) endPool(pool);
}

/** What the driver refuses concerns neither what comes nor the other pools. */
const endPool = (pool: ReceivedPool): void => releaseQuietly(() => pool[Symbol.dispose]());

/** They have their descriptors still, and a hostile peer must not make many of them. */
const MAX_ENDING = 16;
let ending = 0;

/**
 * As {@link forgetPool}, after this turn: its end takes longer than to give out the value that the
 * news of it came with. Another pool never comes by its identity.
 */
export function forgetPoolSoon(id: string, { received }: Pick<ParcelSession, 'received'>): void {
  const pool = received.get(id);
  received.delete(id);
  if (!(pool instanceof ReceivedPool)) return;
  if (ending === MAX_ENDING) {
    endPool(pool);
    return;
  }
  ending += 1;
  setImmediate(() => {
    ending -= 1;
    endPool(pool);
  });
}

/** The pool by that identity; one that comes with its descriptor is remembered. */
function receivePool(
  { pool: id, pid, pidNamespace }: IpcPoolDescriptor,
  owned: OwnedFds,
  { received, process: sender }: ParcelSession,
): ReceivedPool | undefined {
  const known = received.get(id);
  if (known instanceof ReceivedPool) return known;
  if (owned.numbers.length !== 1) return undefined;
  if (received.size >= MAX_RECEIVED_POOLS)
    throw new IpcError(`more than ${MAX_RECEIVED_POOLS} memory pools came over one connection`);
  const [fd] = owned.take();
  const isOfMaker = pid === sender?.pid && pidNamespace === here().pidNamespace;
  const pool = new ReceivedPool(fd as number, isOfMaker);
  received.set(id, pool);
  return pool;
}

/**
 * A pool that came over a connection: its file descriptor comes once, and memory of it any number
 * of times. It stays open for the next memory of it, until the connection ends.
 */
class ReceivedPool implements ReceivedFds, Disposable {
  readonly numbers: readonly number[];
  readonly isByName: boolean;
  #pool: ImportedPool | undefined;

  /**
   * @param fd the pool's, which becomes this object's
   * @param isByName whether its maker has sent it
   */
  constructor(fd: number, isByName: boolean) {
    this.numbers = [fd];
    this.isByName = isByName;
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
    pool.hold();
    this.#pool?.drop();
    this.#pool = pool;
  }

  [Symbol.dispose](): void {
    const [fd] = this.numbers;
    discardFd(fd as number);
    const pool = this.#pool;
    this.#pool = undefined;
    pool?.drop();
  }
}
