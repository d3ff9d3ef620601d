import { OUT0, readSize, writeBytes } from '../../ffi/arena.ts';
import { CU_POINTER_ATTRIBUTE_RANGE_SIZE } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr, CUmemoryPool } from '../../ffi/types.ts';
import { requireMade } from '../arguments.ts';
import { tryAll } from '../attempt.ts';
import { check } from '../check.ts';
import { Context } from '../context.ts';
import type { Device } from '../device.ts';
import { IpcError } from '../errors.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import type { Access } from '../memory/buffer-options.ts';
import type { MemoryResource } from '../memory/memory-resource.ts';
import {
  checkClose,
  destroyPool,
  emptyBooks,
  endOf,
  type PoolBooks,
  type SharedPool,
} from '../memory/pool-books.ts';
import * as driver from '../memory/pool-driver.ts';
import type { PoolCloseOptions } from '../memory/pool-options.ts';
import { freeWithoutWaiting } from '../memory/reclaim.ts';
import { Resource } from '../resource.ts';
import { checkRange, type IpcPoolDescriptor } from './descriptor.ts';
import { exporterIsGone } from './here.ts';
import { givingBack, type Loan } from './loan.ts';
import { mapPayload } from './map-payload.ts';
import { type Mapping, MappingTable, type MappingUse } from './mapping.ts';
import { ofPool } from './pool-descriptor.ts';
import {
  beginSharedMapping,
  beginSharedUse,
  closeSharedHandle,
  endSharedUse,
  nameOfMapping,
} from './shared-counts.ts';

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
