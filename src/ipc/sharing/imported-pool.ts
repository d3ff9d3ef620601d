import { OUT0, readHandle, readSize, writeBytes } from '../../../ffi/arena.ts';
import {
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE,
} from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import { isSameFile } from '../../../ffi/linux/libc.ts';
import type { Address, CUdeviceptr, CUmemoryPool } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import { Context } from '../../context.ts';
import { Device } from '../../device.ts';
import { IpcError } from '../../errors.ts';
import type { Details } from '../../inspect.ts';
import { ReferenceCount, Resource, runAll } from '../../lifetime.ts';
import type { DeviceAccess, DeviceBuffer, MemoryResource } from '../../memory/buffer.ts';
import { freeNonBlocking } from '../../memory/internal-stream.ts';
import { addDuplicateFd, closeContextFd } from '../../memory/physical-memory.ts';
import type { PoolAccess, PoolCloseOptions } from '../../memory/pool-attributes.ts';
import * as driver from '../../memory/pool-attributes.ts';
import {
  checkPoolClose,
  destroyPool,
  isSharedPool,
  newPoolState,
  type PoolState,
  type SharedPool,
  teardownOf,
} from '../../memory/pool-state.ts';
import { assertInternal } from '../../validate.ts';
import {
  acquireSharedMapping,
  acquireSharedUse,
  nameOfMapping,
  openSharedHandle,
  releaseSharedHandle,
  releaseSharedUse,
  retainSharedHandle,
} from '../../waits/worker-tables.ts';
import type { DescriptorFields } from '../descriptor.ts';
import { checkOpened } from './blockers.ts';
import { factsOf } from './facts.ts';
import type { ImportLease, OpenRequest, ReceivedFds } from './kind.ts';
import { type ImportedMapping, MappingTable, mapImported } from './mapping.ts';
import { importedBuffer } from './memory.ts';

/**
 * A memory pool of another process: the `resource` of its buffers that arrive here.
 *
 * It is imported once per context, found again by its file descriptor, and cannot allocate. Its
 * buffers are unmapped when the work queued here before their `close()` is done. The pool is closed
 * with its last buffer, unless it was opened with `openIpcPool`. Then it stays open until
 * `close()`, which throws while buffers of it are open. The exporter should close its own pool
 * after that.
 *
 * @example
 * using pool = openIpcPool(message, { fds });
 * using buffer = openIpcBuffer(another); // memory of it: no descriptor need come along
 * console.log(buffer.resource === pool);
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html
 */
export class ImportedPool extends Resource implements MemoryResource, DeviceAccess {
  readonly context: Context;
  readonly deviceAccessible = true;
  readonly hostAccessible = false;
  /** Whether another process made the object. */
  readonly isMapped = true;
  /** The descriptor that it was opened with: of the pool, or of memory of it. */
  readonly #source: DescriptorFields<'pool'>;
  #descriptor: DescriptorFields<'pool'> | undefined;
  /** @internal The pool's id, and this object's own file descriptor of it. */
  readonly shared: SharedPool;
  readonly #handle: CUmemoryPool;
  readonly #state: PoolState;
  /** Who keeps it open without buffers: callers of `openIpcPool`, receivers, and connections. */
  readonly #users = new ReferenceCount();
  #isDeviceAllowed = false;
  /** The leases on the pool itself. Its finalizer releases them too. */
  readonly #leases: ImportLease[];

  /** @internal */
  constructor(
    context: Context,
    handle: CUmemoryPool,
    fd: number,
    source: DescriptorFields<'pool'>,
  ) {
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
          ...leases.map((lease) => () => lease.released()),
        ]),
    });
    this.#leases = leases;
    this.context = context;
    this.#source = source;
    this.shared = { id: source.pool, fd, onClose: new Set() };
    state.shared = this.shared;
    this.#handle = handle;
    this.#state = state;
    factsOf(this).source = { descriptor: source, fds: () => [fd] };
  }

  /** @internal The descriptor for exporting it again, made when first needed. */
  get descriptor(): DescriptorFields<'pool'> {
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
      `only process ${this.#source.pid}, which made this pool, can allocate from it: ` +
        'make a pool here, or ask that process for a buffer',
    );
  }

  /**
   * Closes the pool in this process; the exporter's pool is not affected.
   *
   * @throws CuffiError while buffers of it are open, unless they are to be closed with it
   */
  override close(options?: PoolCloseOptions): void {
    checkPoolClose(this.#state, options, this.closed);
    super.close();
  }

  /** @internal */
  get accessRemedy(): string {
    return 'opening the memory on that device: openIpcBuffer(message, { device })';
  }

  /** A device's access to the pool's memory: that which the memory is opened on has it. */
  access(device: Device | number): PoolAccess {
    return driver.readAccess(this.handle, Device.resolve(device));
  }

  /** @internal */
  protected override describe(): Details {
    return [`of process ${this.#source.pid}`];
  }

  /** @internal Keeps it open without buffers, until {@link removeUser} or `close()`. */
  addUser(): void {
    this.#users.add();
  }

  /** @internal The last user closes it, unless it has buffers. */
  removeUser(): void {
    this.#users.remove();
    this.#closeUnused();
  }

  /** @internal Adds a lease that is released when the pool is closed. */
  addLease(lease: ImportLease): void {
    this.#leases.push(lease);
  }

  /** Closes it, unless it has buffers or is kept open. */
  #closeUnused(): void {
    if (!this.#users.isUsed && this.#state.buffers.size === 0 && !this.closed) super.close();
  }

  /** @internal Opens memory of the pool by the driver's 64 bytes. @throws IpcError */
  openBuffer(handle: string, request: OpenRequest<DescriptorFields<'pool'>>): DeviceBuffer {
    const { context } = this;
    const state = this.#state;
    const { byteLength, generation, pid } = request.descriptor;
    try {
      this.#allowDevice();
      const use = mappings.use(mappingKey(this, handle), generation, context, () => {
        request.assertOpenable();
        return acquireSharedMapping(generation, (isUsed) => this.#map(handle, pid, isUsed));
      });
      state.byteLength += byteLength;
      return importedBuffer(request, {
        use: {
          mapping: use.mapping,
          // A failure to unmap is reported before the driver refuses to destroy the pool.
          release: (onReleased) =>
            runAll([
              () => use.release(onReleased),
              () => {
                state.byteLength -= byteLength;
                this.#closeUnused();
              },
            ]),
        },
        resource: this,
        owner: state.buffers,
        deviceAccess: this,
        fds: () => [this.shared.fd],
      });
    } catch (error) {
      this.#closeUnused();
      throw error;
    }
  }

  #map(handle: string, pid: number, isUsed: (base: CUdeviceptr) => boolean): ImportedMapping {
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
      // The driver would unmap it for the other threads too.
      unmap: (base) => isUsed(base) || cu.cuMemFree_v2(base),
    });
  }

  /** The pool's own device always has access. Other devices are granted it. */
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

/**
 * The name of a device's access to a pool, shared by all workers of this process because the driver
 * has one pool per process.
 */
const accessKey = (pool: CUmemoryPool, { uuid }: Device): string => `access ${pool} ${uuid}`;

/**
 * The driver finds memory by its pool and handle. The name that the sender gives the pool proves
 * nothing.
 */
const mappingKey = (pool: ImportedPool, handle: string): string => `${pool.handle} ${handle}`;

/**
 * Mapped memory of other processes' pools, by the driver's pool and handle. The table covers all
 * contexts and, through the worker counts, all worker threads. The driver maps the memory once per
 * process, and the first free unmaps it for all (seen on an H200).
 */
const mappings = new MappingTable<ImportedMapping>(
  ({ context, base }) =>
    releaseSharedUse(nameOfMapping(base), () => freeNonBlocking(context, base)),
  { mayBlock: false, onContextReset: ({ base }) => releaseSharedUse(nameOfMapping(base)) },
);

/** Whether the memory of a pool that a descriptor names is mapped here. */
export const isPoolMemoryMapped = (
  pool: ImportedPool,
  { handle, generation }: DescriptorFields<'pool'>,
): boolean => handle !== null && mappings.has(mappingKey(pool, handle), generation);

/** The fields of a pool itself that are those of memory. */
export const POOL_ITSELF = {
  handle: null,
  baseByteLength: 0,
  byteOffset: 0,
  byteLength: 0,
  access: 'read-write',
  bufferId: 0,
  generation: 0,
} as const;

/** Returns the descriptor of the pool itself, from one of its memory. */
function describePoolOf({
  layout: _,
  readyEvent: __,
  ...fields
}: DescriptorFields<'pool'>): DescriptorFields<'pool'> {
  return { ...fields, ...POOL_ITSELF };
}

// ---- The registry of open pools ----

/** An imported pool that is open here. */
interface OpenPool {
  readonly pool: ImportedPool;
  /** See {@link ReceivedFds}. */
  isNameTrusted: boolean;
}

/**
 * The open pools, by stated identity. Different pools may share one, because any process can state
 * an identity that it has seen.
 */
const openPools = new Map<string, OpenPool[]>();

const identityOf = ({ pid, startTime, pidNamespace, pool }: DescriptorFields<'pool'>): string =>
  `${pid} ${startTime} ${pidNamespace} ${pool}`;

/** The file descriptors that came with a descriptor of a pool. */
type PoolFds = Pick<ReceivedFds, 'numbers' | 'isNameTrusted'>;

/**
 * Returns the open pool of a descriptor in a context: the pool of the same open file. Without a
 * file descriptor, the one pool whose identity is trusted.
 */
export const findPool = (
  context: Context,
  descriptor: DescriptorFields<'pool'>,
  fds: PoolFds,
): ImportedPool | undefined => findOpenPool(context, descriptor, fds)?.pool;

function findOpenPool(
  context: Context,
  descriptor: DescriptorFields<'pool'>,
  { numbers, isNameTrusted }: PoolFds,
): OpenPool | undefined {
  const [fd] = numbers;
  const named = (openPools.get(identityOf(descriptor)) ?? []).filter(
    ({ pool }) => !pool.closed && pool.context === context,
  );
  if (fd !== undefined) return named.find(({ pool }) => isSameFile(pool.shared.fd, fd));
  const opened = isNameTrusted ? named.filter((each) => each.isNameTrusted) : [];
  // Of two pools with the same identity, it is unknown which one is meant.
  return opened.length === 1 ? opened[0] : undefined;
}

/**
 * Returns the pool of a descriptor. Imports it at its first use in the context, with the file
 * descriptor that came with it, which the caller still owns.
 *
 * @throws IpcError
 */
export function importPool(request: OpenRequest<DescriptorFields<'pool'>>): ImportedPool {
  const { context, descriptor, fds } = request;
  const open = findOpenPool(context, descriptor, fds);
  if (open) {
    open.isNameTrusted ||= fds.isNameTrusted;
    return open.pool;
  }
  request.assertOpenable();
  const [fd] = fds.numbers;
  if (fd === undefined)
    throw new IpcError(
      `the pool of process ${descriptor.pid} is not open here, or shares its identity with another, and ` +
        'its file descriptor is missing: pass it as { fds }, or send the memory over a connection',
      undefined,
      'no-file-descriptor',
    );
  const pool = importNew(context, descriptor, fd);
  addOpenPool(identityOf(descriptor), { pool, isNameTrusted: fds.isNameTrusted });
  return pool;
}

function addOpenPool(name: string, opened: OpenPool): void {
  removeClosedPools();
  openPools.set(name, [...(openPools.get(name) ?? []), opened]);
  opened.pool.shared.onClose.add(removeClosedPools);
}

/** Called when a pool is closed, and before another is added: a reset closes pools without notice. */
function removeClosedPools(): void {
  for (const [name, pools] of openPools) {
    const left = pools.filter(({ pool }) => !pool.closed);
    if (left.length > 0) openPools.set(name, left);
    else openPools.delete(name);
  }
}

function importNew(
  context: Context,
  descriptor: DescriptorFields<'pool'>,
  fd: number,
): ImportedPool {
  const open = [...openPools.values()].flat().flatMap(({ pool }) => (pool.closed ? [] : [pool]));
  const ownFd = addDuplicateFd(context, fd);
  let handle: CUmemoryPool;
  try {
    // The driver has one handle per process: if one worker destroyed it, all would lose it.
    const elsewhere = open.find(({ shared }) => isSameFile(shared.fd, fd));
    if (elsewhere) retainSharedHandle(elsewhere.handle);
    handle = elsewhere?.handle ?? openSharedHandle(() => importHandle(ownFd, descriptor));
  } catch (error) {
    closeContextFd(context, ownFd);
    throw error;
  }
  // It was already open by another name, or the open files could not be compared.
  const same = open.find((pool) => pool.context === context && pool.handle === handle);
  if (!same) return new ImportedPool(context, handle, ownFd, descriptor);
  closeContextFd(context, ownFd);
  releaseSharedHandle(handle, () => {});
  return same;
}

function importHandle(fd: number, { pid }: DescriptorFields<'pool'>): CUmemoryPool {
  const status = cu.cuMemPoolImportFromShareableHandle(
    OUT0,
    fd as Address,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    0,
  );
  checkOpened(
    status,
    'cuMemPoolImportFromShareableHandle',
    () => `a memory pool of process ${pid}`,
  );
  const handle = readHandle<CUmemoryPool>(OUT0, cu.cuMemPoolDestroy);
  // Closing its last buffer here would destroy this process's own pool.
  if (isSharedPool(handle, fd))
    throw new IpcError(
      `the memory pool that process ${pid} sent is a pool of this very process: use that pool`,
      undefined,
      'same-process',
    );
  return handle;
}
