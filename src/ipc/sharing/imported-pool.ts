import { OUT0, readSize, writeBytes } from '../../../ffi/arena.ts';
import { CU_POINTER_ATTRIBUTE_RANGE_SIZE } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import type { CUdeviceptr, CUmemoryPool } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import { Context } from '../../context.ts';
import type { Device } from '../../device.ts';
import { IpcError } from '../../errors.ts';
import { Resource, runAll } from '../../lifetime.ts';
import type { Access, DeviceBuffer, MemoryResource } from '../../memory/buffer.ts';
import { freeNonBlocking } from '../../memory/device-memory.ts';
import type { PoolCloseOptions } from '../../memory/pool-attributes.ts';
import * as driver from '../../memory/pool-attributes.ts';
import {
  checkPoolClose,
  destroyPool,
  newPoolState,
  type PoolState,
  type SharedPool,
  teardownOf,
} from '../../memory/pool-state.ts';
import { assertInternal } from '../../validate.ts';
import { checkRange, type IpcPoolDescriptor } from '../descriptor.ts';
import { withChecksum } from '../descriptor-bytes.ts';
import { isExporterGone } from '../identity.ts';
import { type Mapping, MappingTable, type MappingUse, mapImported } from './mapping.ts';
import { type ImportLease, importedBuffer, releaseWithLease } from './ownership.ts';
import {
  acquireSharedMapping,
  acquireSharedUse,
  nameOfMapping,
  releaseSharedHandle,
  releaseSharedUse,
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
  readonly #source: IpcPoolDescriptor;
  #descriptor: IpcPoolDescriptor | undefined;
  /** @internal The pool's identity, and a descriptor of it: this object's own. */
  readonly shared: SharedPool;
  readonly #handle: CUmemoryPool;
  readonly #state: PoolState;
  /** How often it was opened by itself. */
  #openCount = 0;
  /** How many connections want it kept without buffers. */
  #connectionCount = 0;
  #isDeviceAllowed = false;
  /** What it was lent for, by itself; its finalizer's too. */
  readonly #leases: ImportLease[];

  /** @internal */
  constructor(context: Context, handle: CUmemoryPool, fd: number, source: IpcPoolDescriptor) {
    assertInternal(context, Context, 'ImportedPool', 'openIpcPool');
    const state = newPoolState(context);
    const { epoch } = context;
    const end = teardownOf(handle);
    const leases: ImportLease[] = [];
    super('ImportedPool', {
      owner: context.resources,
      release: () =>
        runAll([
          () =>
            destroyPool(context, epoch, state, {
              revokeAccess: (device) =>
                releaseSharedUse(accessKey(handle, device), () => end.revokeAccess(device)),
              destroy: () => releaseSharedHandle(handle, end.destroy),
            }),
          ...leases.map((loan) => () => loan.released()),
        ]),
    });
    this.#leases = leases;
    this.context = context;
    this.#source = source;
    this.shared = { id: source.pool, fd, onClose: new Set() };
    state.shared = this.shared;
    this.#handle = handle;
    this.#state = state;
  }

  /** @internal What it is passed on by; made when that is asked for. */
  get descriptor(): IpcPoolDescriptor {
    this.#descriptor ??= describePoolOf(this.#source);
    return this.#descriptor;
  }

  /** The driver's handle. @throws ClosedError */
  get handle(): CUmemoryPool {
    this.assertOpen();
    return this.#handle;
  }

  /** @throws IpcError always: only the process that made the pool allocates from it */
  allocate(): never {
    throw new IpcError(
      `this pool was made by process ${this.#source.pid}, which alone can allocate from it: ` +
        'make a pool here, or have a buffer sent',
    );
  }

  /**
   * Ends the use of the pool here; nothing happens to it where it was made.
   *
   * @throws CuffiError while buffers of it are open, unless they are to be closed with it
   */
  override close(options?: PoolCloseOptions): void {
    checkPoolClose(this.#state, options, this.closed);
    super.close();
  }

  override toString(): string {
    return `ImportedPool(of process ${this.#source.pid}${this.closed ? ', closed' : ''})`;
  }

  /** @internal Keeps it open without buffers, until it is closed. */
  keepOpen(): void {
    this.#openCount += 1;
  }

  /** @internal It was opened by itself for nobody. */
  closeUnclaimed(): void {
    this.#openCount = Math.max(this.#openCount - 1, 0);
    this.closeUnused();
  }

  /** @internal Has a lender told when it is closed. */
  addLease(lease: ImportLease): void {
    this.#leases.push(lease);
  }

  /** @internal Keeps it open without buffers, until {@link releaseForConnection}. */
  retainForConnection(): void {
    this.#connectionCount += 1;
  }

  /** @internal */
  releaseForConnection(): void {
    this.#connectionCount -= 1;
    this.closeUnused();
  }

  /** @internal Closes it, unless it has buffers or someone wants it kept. */
  closeUnused(): void {
    const isUsed = this.#openCount > 0 || this.#connectionCount > 0 || this.#state.buffers.size > 0;
    if (!isUsed && !this.closed) super.close();
  }

  /** @internal A buffer of it, by the driver's 64 bytes. @throws IpcError */
  openBuffer(
    handle: string,
    descriptor: IpcPoolDescriptor,
    access: Access,
    lease?: ImportLease,
  ): DeviceBuffer {
    const { context } = this;
    const state = this.#state;
    const { byteLength, generation } = descriptor;
    let use: MappingUse<Mapping> | undefined;
    try {
      this.#allowDevice();
      use = mappings.use(mappingKey(this, handle), generation, context, () =>
        acquireSharedMapping(generation, (isUsed) => this.#map(handle, descriptor, isUsed)),
      );
      checkRange(descriptor, use.mapping.byteLength);
    } catch (error) {
      use?.release();
      this.closeUnused();
      throw error;
    }
    const { mapping, release } = use;
    state.byteLength += byteLength;
    const leased = releaseWithLease(context, release, lease);
    return importedBuffer({
      descriptor,
      context,
      base: mapping.base,
      resource: this,
      owner: state.buffers,
      isOwnerGone: () => isExporterGone(descriptor),
      release: {
        setStream: leased.setStream,
        release: () => {
          state.byteLength -= byteLength;
          // What fails to be unmapped is told before the driver refuses to destroy its pool.
          runAll([() => leased.release(), () => this.closeUnused()]);
        },
      },
      access,
      fds: () => [this.shared.fd],
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
    return mapImported(context, {
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
    if (this.#isDeviceAllowed) return;
    const { device } = this.context;
    const pool = this.handle;
    const allow = (): void => {
      if (driver.readAccess(pool, device) !== 'read-write') driver.writeAccess(pool, device, true);
    };
    if (device.uuid === this.#source.device) allow();
    else {
      acquireSharedUse(accessKey(pool, device), 0, allow);
      this.#state.devicesWithAccess.add(device);
    }
    this.#isDeviceAllowed = true;
  }
}

/** What all workers of this process call a device's access to a pool, which is the driver's pool's. */
const accessKey = (pool: CUmemoryPool, { uuid }: Device): string => `access ${pool} ${uuid}`;

/** The driver finds memory by both: what its sender calls the pool tells nothing. */
const mappingKey = (pool: ImportedPool, handle: string): string => `${pool.handle} ${handle}`;

/**
 * The memory of other processes' pools, by the driver's pool and handle. Of all contexts and, by the shared
 * uses, of all worker threads: the driver maps it once a process, and the first free unmaps it for
 * all (seen on an H200).
 */
const mappings = new MappingTable<Mapping>(
  ({ context, base }) =>
    releaseSharedUse(nameOfMapping(base), () => freeNonBlocking(context, base)),
  { mayBlock: false, onContextReset: ({ base }) => releaseSharedUse(nameOfMapping(base)) },
);

/** Whether the memory of a pool that a descriptor names is mapped here. */
export const isPoolMemoryMapped = (
  pool: ImportedPool,
  { handle, generation }: IpcPoolDescriptor,
): boolean => handle !== null && mappings.has(mappingKey(pool, handle), generation);

/** The pool itself, of the descriptor of its memory. */
function describePoolOf(descriptor: IpcPoolDescriptor): IpcPoolDescriptor {
  const { layout: _, readyEvent: __, ...fields } = descriptor;
  const nothing = { baseByteLength: 0, byteOffset: 0, byteLength: 0, bufferId: 0, generation: 0 };
  return withChecksum<'pool'>({ ...fields, ...nothing, access: 'read-write', handle: null });
}
