import { BLOCK, OUT0, readBase64, readHandle, readSize, writeBytes } from '../../../ffi/arena.ts';
import {
  CU_IPC_HANDLE_SIZE,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE,
} from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import { isSameFile } from '../../../ffi/linux/libc.ts';
import type { Address, CUdeviceptr, CUmemoryPool } from '../../../ffi/types.ts';
import { check, cudaError } from '../../check.ts';
import { Context } from '../../context.ts';
import type { Device } from '../../device.ts';
import { IpcError } from '../../errors.ts';
import { Resource, tryAll } from '../../lifetime.ts';
import { type Access, DeviceBuffer, type MemoryResource } from '../../memory/buffer.ts';
import { closeKeptFd, keepDuplicate } from '../../memory/context-fds.ts';
import { freeWithoutWaiting } from '../../memory/device-memory.ts';
import { bufferIdOf } from '../../memory/pointer.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import type { PoolCloseOptions } from '../../memory/pool-attributes.ts';
import * as driver from '../../memory/pool-attributes.ts';
import {
  checkClose,
  destroyPool,
  emptyBooks,
  endOf,
  isSharedPool,
  type PoolBooks,
  type SharedPool,
} from '../../memory/pool-state.ts';
import { fromEnvironment } from '../../release-queue.ts';
import { requireMade } from '../../validate.ts';
import {
  checkRange,
  type IpcDescriptor,
  type IpcPoolDescriptor,
  sealDescriptor,
} from '../descriptor.ts';
import { exporter, exporterIsGone } from '../identity.ts';
import { checkShared } from './access.ts';
import { generationOf, rememberExport } from './export-id.ts';
import { type Mapping, MappingTable, type MappingUse, mapPayload } from './mapping.ts';
import type { Parcel } from './marshal.ts';
import { givingBack, type Loan } from './ownership.ts';
import type { ReceivedFds } from './received-fds.ts';
import { type Obstacle, refuse } from './support.ts';
import {
  beginSharedMapping,
  beginSharedUse,
  closeSharedHandle,
  endSharedUse,
  nameOfMapping,
  openSharedHandle,
  shareHandle,
} from './worker-counts.ts';

/**
 * A memory pool of another process: what buffers of it that arrive here have as their `resource`.
 *
 * It is imported once a context, found again by its file descriptor, and cannot allocate. Its buffers are
 * unmapped when the work that was queued here before their `close()` is done. It goes with its last
 * buffer, unless it was opened with `openIpcPool`: then it stays until `close()`, which refuses
 * while buffers of it are open. The exporter should close its own after that.
 *
 * @example
 * using pool = openIpcPool(message, { fds });
 * using buffer = openIpcBuffer(another); // memory of it: no descriptor need come along
 * console.log(buffer.resource === pool);
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html
 */
export class ImportedPool extends Resource implements MemoryResource {
  readonly context: Context;
  readonly deviceAccessible = true;
  readonly hostAccessible = false;
  /** Whether another process made it. */
  readonly isMapped = true;
  /** Of the pool, or of memory of it: what it was opened with. */
  readonly #origin: IpcPoolDescriptor;
  #descriptor: IpcPoolDescriptor | undefined;
  /** @internal The pool's identity, and a descriptor of it: this object's own. */
  readonly shared: SharedPool;
  readonly #handle: CUmemoryPool;
  readonly #books: PoolBooks;
  /** How often it was opened by itself. */
  #keepers = 0;
  /** How many connections want it kept without buffers. */
  #holders = 0;
  #isAllowed = false;
  /** What it was lent for, by itself; its finalizer's too. */
  readonly #loans: Loan[];

  /** @internal */
  constructor(context: Context, handle: CUmemoryPool, fd: number, origin: IpcPoolDescriptor) {
    requireMade(context, Context, 'ImportedPool', 'openIpcPool');
    const books = emptyBooks(context);
    const { resets } = context;
    const end = endOf(handle);
    const loans: Loan[] = [];
    super('ImportedPool', {
      owner: context.resources,
      release: () =>
        tryAll([
          () =>
            destroyPool(context, resets, books, {
              withdraw: (device) =>
                endSharedUse(nameOfAccess(handle, device), () => end.withdraw(device)),
              destroy: () => closeSharedHandle(handle, end.destroy),
            }),
          ...loans.map((loan) => () => loan.returned()),
        ]),
    });
    this.#loans = loans;
    this.context = context;
    this.#origin = origin;
    this.shared = { id: origin.pool, fd, onEnd: new Set() };
    books.shared = this.shared;
    this.#handle = handle;
    this.#books = books;
  }

  /** @internal What it is passed on by; made when that is asked for. */
  get descriptor(): IpcPoolDescriptor {
    this.#descriptor ??= ofPool(this.#origin);
    return this.#descriptor;
  }

  /** The driver's handle. @throws ClosedError */
  get handle(): CUmemoryPool {
    this.requireOpen();
    return this.#handle;
  }

  /** @throws IpcError always: only the process that made the pool allocates from it */
  allocate(): never {
    throw new IpcError(
      `this pool was made by process ${this.#origin.pid}, which alone can allocate from it: ` +
        'make a pool here, or have a buffer sent',
    );
  }

  /**
   * Ends the use of the pool here; nothing happens to it where it was made.
   *
   * @throws CuffiError while buffers of it are open, unless they are to be closed with it
   */
  override close(options?: PoolCloseOptions): void {
    checkClose(this.#books, options, this.closed);
    super.close();
  }

  override toString(): string {
    return `ImportedPool(of process ${this.#origin.pid}${this.closed ? ', closed' : ''})`;
  }

  /** @internal Keeps it open without buffers, until it is closed. */
  keepOpen(): void {
    this.#keepers += 1;
  }

  /** @internal It was opened by itself for nobody. */
  discard(): void {
    this.#keepers = Math.max(this.#keepers - 1, 0);
    this.closeUnused();
  }

  /** @internal Has a lender told when it is closed. */
  borrow(loan: Loan): void {
    this.#loans.push(loan);
  }

  /** @internal Keeps it open without buffers, until {@link drop}. */
  hold(): void {
    this.#holders += 1;
  }

  /** @internal */
  drop(): void {
    this.#holders -= 1;
    this.closeUnused();
  }

  /** @internal Closes it, unless it has buffers or someone wants it kept. */
  closeUnused(): void {
    const isUsed = this.#keepers > 0 || this.#holders > 0 || this.#books.buffers.size > 0;
    if (!isUsed && !this.closed) super.close();
  }

  /** @internal A buffer of it, by the driver's 64 bytes. @throws IpcError */
  openBuffer(
    handle: string,
    descriptor: IpcPoolDescriptor,
    access: Access,
    loan?: Loan,
  ): DeviceBuffer {
    const { context } = this;
    const books = this.#books;
    const { byteOffset, byteLength, generation } = descriptor;
    let use: MappingUse<Mapping> | undefined;
    try {
      this.#allowDevice();
      use = mapped.use(nameIn(this, handle), generation, context, () =>
        beginSharedMapping(generation, (isUsed) => this.#map(handle, descriptor, isUsed)),
      );
      checkRange(descriptor, use.mapping.byteLength);
    } catch (error) {
      use?.release();
      this.closeUnused();
      throw error;
    }
    const { mapping, release } = use;
    books.byteLength += byteLength;
    const back = givingBack(context, release, loan);
    return new DeviceBuffer({
      context,
      address: (mapping.base + byteOffset) as CUdeviceptr,
      byteLength,
      origin: 'imported',
      resource: this,
      owner: books.buffers,
      isOrphan: () => exporterIsGone(descriptor),
      release: {
        freeIn: back.freeIn,
        release: () => {
          books.byteLength -= byteLength;
          // What fails to be unmapped is told before the driver refuses to destroy its pool.
          tryAll([() => back.release(), () => this.closeUnused()]);
        },
      },
      access,
    });
  }

  #map(
    handle: string,
    { pid }: IpcPoolDescriptor,
    isUsed: (base: CUdeviceptr) => boolean,
  ): Mapping {
    const { context } = this;
    const pool = this.handle;
    const exporter = `process ${pid}`;
    return mapPayload(context, {
      exporter,
      call: 'cuMemPoolImportPointer',
      map: () => cu.cuMemPoolImportPointer(OUT0, pool, writeBytes(Buffer.from(handle, 'base64'))),
      measure(base) {
        check(
          cu.cuPointerGetAttribute(OUT0, CU_POINTER_ATTRIBUTE_RANGE_SIZE, base),
          'cuPointerGetAttribute',
          () => `measuring memory of ${exporter}`,
        );
        return readSize(OUT0);
      },
      // The driver would unmap it for the others, too.
      unmap: (base) => isUsed(base) || cu.cuMemFree_v2(base),
    });
  }

  /** The pool's own device may use it from the beginning, others when they are told to. */
  #allowDevice(): void {
    if (this.#isAllowed) return;
    const { device } = this.context;
    const pool = this.handle;
    const allow = (): void => {
      if (driver.readAccess(pool, device) !== 'read-write') driver.writeAccess(pool, device, true);
    };
    if (device.uuid === this.#origin.device) allow();
    else {
      beginSharedUse(nameOfAccess(pool, device), 0, allow);
      this.#books.granted.add(device);
    }
    this.#isAllowed = true;
  }
}

/** What all workers of this process call a device's access to a pool, which is the driver's pool's. */
const nameOfAccess = (pool: CUmemoryPool, { uuid }: Device): string => `access ${pool} ${uuid}`;

/** The driver finds memory by both: what its sender calls the pool tells nothing. */
const nameIn = (pool: ImportedPool, handle: string): string => `${pool.handle} ${handle}`;

/**
 * The memory of other processes' pools, by the driver's pool and handle. Of all contexts and, by the shared
 * uses, of all worker threads: the driver maps it once a process, and the first free unmaps it for
 * all (seen on an H200).
 */
const mapped = new MappingTable<Mapping>(
  ({ context, base }) => endSharedUse(nameOfMapping(base), () => freeWithoutWaiting(context, base)),
  { waits: false, forget: ({ base }) => endSharedUse(nameOfMapping(base)) },
);

/** Whether the memory of a pool that a descriptor names is mapped here. */
export const isPoolMemoryMapped = (
  pool: ImportedPool,
  { handle, generation }: IpcPoolDescriptor,
): boolean => handle !== null && mapped.has(nameIn(pool, handle), generation);

/** A pool itself. @throws IpcError for one that was not made for other processes */
export function exportPool(pool: MemoryPool): Parcel {
  const { id, fd } = pool.share();
  rememberExport(`pool ${id}`, pool);
  const descriptor = sealDescriptor<'pool'>({
    kind: 'pool',
    ...exporter(pool.context.device.uuid),
    pool: id,
    handle: null,
    baseByteLength: 0,
    byteOffset: 0,
    byteLength: 0,
    access: 'read-write',
    bufferId: 0,
    generation: 0,
  });
  return { descriptor, fds: [fd] };
}

/**
 * Memory of a pool. The driver names allocations by their first address alone.
 *
 * @throws IpcError for read-only memory, and for an allocation that its receiver's driver crashes on
 */
export function exportPoolMemory(buffer: DeviceBuffer, pool: MemoryPool): Parcel {
  const { address, byteLength, access, whole, context } = buffer;
  checkShared('pool', access);
  refuse(sizeObstacle(whole.byteLength));
  const { id, fd } = pool.share();
  const base = whole.address;
  const { handle, bufferId } = context.run(() => {
    check(
      cu.cuMemPoolExportPointer(BLOCK, base),
      'cuMemPoolExportPointer',
      () => `sharing ${whole.byteLength} bytes of a memory pool`,
    );
    return { handle: readBase64(BLOCK, CU_IPC_HANDLE_SIZE), bufferId: bufferIdOf(base) };
  });
  const { device, machine, pid, startTime, pidNamespace } = exporter(context.device.uuid);
  // Each field by its name: a spread costs more than all of them.
  const descriptor = sealDescriptor<'pool'>({
    kind: 'pool',
    device,
    machine,
    pid,
    startTime,
    pidNamespace,
    pool: id,
    handle,
    baseByteLength: whole.byteLength,
    byteOffset: address - base,
    byteLength,
    access,
    bufferId,
    generation: generationOf(whole),
  });
  return { descriptor, fds: [fd] };
}

/** The pools of other processes that are open here, each once a context. */

/** A pool that is open here, by an identity that was stated of it. */
interface Known {
  readonly pool: ImportedPool;
  /** As {@link ReceivedFds}. */
  isByName: boolean;
}

/** By stated identity. Different pools may have one: any process can state what it has seen. */
const known = new Map<string, Known[]>();

const nameOf = ({ pid, startTime, pidNamespace, pool }: IpcPoolDescriptor): string =>
  `${pid} ${startTime} ${pidNamespace} ${pool}`;

/** What came with a descriptor of a pool. */
type PoolFds = Pick<ReceivedFds, 'numbers' | 'isByName'>;

/**
 * The pool that came with a descriptor, where it is open in the context: that of the same open file.
 * Without a file descriptor the one whose identity is known to be that.
 */
export const findPool = (
  context: Context,
  descriptor: IpcPoolDescriptor,
  fds: PoolFds,
): ImportedPool | undefined => findKnown(context, descriptor, fds)?.pool;

function findKnown(
  context: Context,
  descriptor: IpcPoolDescriptor,
  { numbers, isByName }: PoolFds,
): Known | undefined {
  const [fd] = numbers;
  const named = (known.get(nameOf(descriptor)) ?? []).filter(
    ({ pool }) => !pool.closed && pool.context === context,
  );
  if (fd !== undefined) return named.find(({ pool }) => isSameFile(pool.shared.fd, fd));
  const opened = isByName ? named.filter((each) => each.isByName) : [];
  // Of two that are called the same nothing tells which one is meant.
  return opened.length === 1 ? opened[0] : undefined;
}

/**
 * The pool that came with a descriptor, imported at its first use in the context.
 *
 * @param fds the pool's file descriptor, which stays its caller's; needed where the pool is not open
 * @throws IpcError
 */
export function importPool(
  context: Context,
  descriptor: IpcPoolDescriptor,
  fds: PoolFds,
): ImportedPool {
  const open = findKnown(context, descriptor, fds);
  if (open) {
    open.isByName ||= fds.isByName;
    return open.pool;
  }
  const [fd] = fds.numbers;
  if (fd === undefined)
    throw new IpcError(
      `the pool of process ${descriptor.pid} is not open here, or not alone by its identity, and its ` +
        'file descriptor did not come: give it with { fds }, or have the memory sent over a connection',
      undefined,
      'no-file-descriptor',
    );
  const pool = importAnew(context, descriptor, fd);
  remember(nameOf(descriptor), { pool, isByName: fds.isByName });
  return pool;
}

function remember(name: string, opened: Known): void {
  for (const [stated, pools] of known) {
    const left = pools.filter(({ pool }) => !pool.closed);
    if (left.length > 0) known.set(stated, left);
    else known.delete(stated);
  }
  known.set(name, [...(known.get(name) ?? []), opened]);
}

function importAnew(context: Context, descriptor: IpcPoolDescriptor, fd: number): ImportedPool {
  const open = [...known.values()].flat().flatMap(({ pool }) => (pool.closed ? [] : [pool]));
  const own = keepDuplicate(context, fd);
  let handle: CUmemoryPool;
  try {
    // The driver has it once a process: destroyed by one worker, it would be gone for all.
    const elsewhere = open.find(({ shared }) => isSameFile(shared.fd, fd));
    if (elsewhere) shareHandle(elsewhere.handle);
    handle = elsewhere?.handle ?? openSharedHandle(() => importHandle(own, descriptor));
  } catch (error) {
    closeKeptFd(context, own);
    throw error;
  }
  // By another name, or where open files cannot be compared.
  const same = open.find((pool) => pool.context === context && pool.handle === handle);
  if (!same) return new ImportedPool(context, handle, own, descriptor);
  closeKeptFd(context, own);
  closeSharedHandle(handle, () => {});
  return same;
}

function importHandle(fd: number, { pid }: IpcPoolDescriptor): CUmemoryPool {
  const status = cu.cuMemPoolImportFromShareableHandle(
    OUT0,
    fd as Address,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    0,
  );
  if (status !== 0)
    throw new IpcError(
      `a memory pool of process ${pid} could not be opened`,
      cudaError(status, 'cuMemPoolImportFromShareableHandle'),
    );
  const handle = readHandle<CUmemoryPool>(OUT0, cu.cuMemPoolDestroy);
  // Destroyed here with its last buffer, it would be gone for this process.
  if (isSharedPool(handle, fd))
    throw new IpcError(
      `what came as a memory pool of process ${pid} is a pool of this very process: use it itself`,
      undefined,
      'same-process',
    );
  return handle;
}

/** What descriptors of pools may name. */

/** The pool itself, of the descriptor of its memory. */
function ofPool(descriptor: IpcPoolDescriptor): IpcPoolDescriptor {
  const { layout: _, readyEvent: __, ...fields } = descriptor;
  const nothing = { baseByteLength: 0, byteOffset: 0, byteLength: 0, bufferId: 0, generation: 0 };
  return sealDescriptor<'pool'>({ ...fields, ...nothing, access: 'read-write', handle: null });
}

/**
 * How many bytes one allocation of a pool may have that goes to another process. Of a larger one the
 * driver ends the process that opens it: SIGSEGV inside cuMemPoolImportPointer. Seen with driver 580,
 * with 5.25 GiB and above, not in each run; 5 GiB always works. Neither the size of the pool matters nor
 * what else is in it.
 * A driver that was not tried is taken to do the same.
 */
const KNOWN_TO_WORK = 5 * 2 ** 30;
const LIMIT = 'CUFFI_POOL_SHARE_LIMIT';

/**
 * Why an allocation of a pool is too large to go to another process; undefined where it is not.
 *
 * @param byteLength of the whole allocation
 * @throws RangeError where the limit of the environment is not a number
 */
function sizeObstacle(byteLength: number): Obstacle | undefined {
  // The environment is not read for what works anyway: that costs more than the rest.
  if (byteLength <= KNOWN_TO_WORK) return undefined;
  const limit = Math.max(KNOWN_TO_WORK, fromEnvironment(LIMIT, KNOWN_TO_WORK));
  if (byteLength <= limit) return undefined;
  return {
    code: 'not-supported',
    reason:
      `${byteLength} bytes of a memory pool, in one allocation, cannot be shared: above ${limit} bytes ` +
      'the driver ends the process that opens it (SIGSEGV in cuMemPoolImportPointer, seen with driver 580)',
    remedy:
      'Share virtual memory (VirtualMemory.reserve(byteLength, { shareable: true })), or several ' +
      `allocations. If the driver is known to open larger ones, set ${LIMIT} to the bytes of the ` +
      'largest in both processes.',
  };
}

/** As {@link sizeObstacle}, of what a descriptor says of its allocation. */
export const poolObstacle = (descriptor: IpcDescriptor): Obstacle | undefined =>
  descriptor.kind === 'pool' ? sizeObstacle(descriptor.baseByteLength) : undefined;
