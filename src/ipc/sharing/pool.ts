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
import { Resource, runAll } from '../../lifetime.ts';
import { type Access, DeviceBuffer, type MemoryResource } from '../../memory/buffer.ts';
import { addDuplicateFd, closeContextFd } from '../../memory/context-fds.ts';
import { freeNonBlocking } from '../../memory/internal-stream.ts';
import { bufferIdOf } from '../../memory/pointer-attributes.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import type { PoolCloseOptions } from '../../memory/pool-attributes.ts';
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
import { numberFromEnvironment } from '../../release-queue.ts';
import { assertInternal } from '../../validate.ts';
import {
  checkRange,
  type IpcDescriptor,
  type IpcPoolDescriptor,
  withChecksum,
} from '../descriptor.ts';
import { describeExporter, isExporterGone } from '../identity.ts';
import { checkExportAccess } from './access.ts';
import { exportIdOf, rememberExport } from './export-id.ts';
import { type Mapping, MappingTable, type MappingUse, mapImported } from './mapping.ts';
import type { Exported } from './marshal.ts';
import { type ImportLease, releaseWithLease } from './ownership.ts';
import type { ReceivedFds } from './received-fds.ts';
import { type OpenBlocker, throwIfBlocked } from './support.ts';
import {
  acquireSharedMapping,
  acquireSharedUse,
  nameOfMapping,
  openSharedHandle,
  releaseSharedHandle,
  releaseSharedUse,
  retainSharedHandle,
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
    const { byteOffset, byteLength, generation } = descriptor;
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
    return new DeviceBuffer({
      context,
      address: (mapping.base + byteOffset) as CUdeviceptr,
      byteLength,
      origin: 'imported',
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

/** A pool itself. @throws IpcError for one that was not made for other processes */
export function exportPool(pool: MemoryPool): Exported {
  const { id, fd } = pool.share();
  rememberExport(`pool ${id}`, pool);
  const descriptor = withChecksum<'pool'>({
    kind: 'pool',
    ...describeExporter(pool.context.device.uuid),
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
export function exportPoolMemory(buffer: DeviceBuffer, pool: MemoryPool): Exported {
  const { address, byteLength, access, root, context } = buffer;
  checkExportAccess('pool', access);
  throwIfBlocked(sizeBlocker(root.byteLength));
  const { id, fd } = pool.share();
  const base = root.address;
  const { handle, bufferId } = context.run(() => {
    check(
      cu.cuMemPoolExportPointer(BLOCK, base),
      'cuMemPoolExportPointer',
      () => `sharing ${root.byteLength} bytes of a memory pool`,
    );
    return { handle: readBase64(BLOCK, CU_IPC_HANDLE_SIZE), bufferId: bufferIdOf(base) };
  });
  const { device, machine, pid, startTime, pidNamespace } = describeExporter(context.device.uuid);
  // Each field by its name: a spread costs more than all of them.
  const descriptor = withChecksum<'pool'>({
    kind: 'pool',
    device,
    machine,
    pid,
    startTime,
    pidNamespace,
    pool: id,
    handle,
    baseByteLength: root.byteLength,
    byteOffset: address - base,
    byteLength,
    access,
    bufferId,
    generation: exportIdOf(root),
  });
  return { descriptor, fds: [fd] };
}

/** The pools of other processes that are open here, each once a context. */

/** A pool that is open here, by an identity that was stated of it. */
interface OpenPool {
  readonly pool: ImportedPool;
  /** As {@link ReceivedFds}. */
  isNameTrusted: boolean;
}

/** By stated identity. Different pools may have one: any process can state what it has seen. */
const openPools = new Map<string, OpenPool[]>();

const identityOf = ({ pid, startTime, pidNamespace, pool }: IpcPoolDescriptor): string =>
  `${pid} ${startTime} ${pidNamespace} ${pool}`;

/** What came with a descriptor of a pool. */
type PoolFds = Pick<ReceivedFds, 'numbers' | 'isNameTrusted'>;

/**
 * The pool that came with a descriptor, where it is open in the context: that of the same open file.
 * Without a file descriptor the one whose identity is known to be that.
 */
export const findPool = (
  context: Context,
  descriptor: IpcPoolDescriptor,
  fds: PoolFds,
): ImportedPool | undefined => findOpenPool(context, descriptor, fds)?.pool;

function findOpenPool(
  context: Context,
  descriptor: IpcPoolDescriptor,
  { numbers, isNameTrusted }: PoolFds,
): OpenPool | undefined {
  const [fd] = numbers;
  const named = (openPools.get(identityOf(descriptor)) ?? []).filter(
    ({ pool }) => !pool.closed && pool.context === context,
  );
  if (fd !== undefined) return named.find(({ pool }) => isSameFile(pool.shared.fd, fd));
  const opened = isNameTrusted ? named.filter((each) => each.isNameTrusted) : [];
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
  const open = findOpenPool(context, descriptor, fds);
  if (open) {
    open.isNameTrusted ||= fds.isNameTrusted;
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
  const pool = importNew(context, descriptor, fd);
  addOpenPool(identityOf(descriptor), { pool, isNameTrusted: fds.isNameTrusted });
  return pool;
}

function addOpenPool(name: string, opened: OpenPool): void {
  for (const [stated, pools] of openPools) {
    const left = pools.filter(({ pool }) => !pool.closed);
    if (left.length > 0) openPools.set(stated, left);
    else openPools.delete(stated);
  }
  openPools.set(name, [...(openPools.get(name) ?? []), opened]);
}

function importNew(context: Context, descriptor: IpcPoolDescriptor, fd: number): ImportedPool {
  const open = [...openPools.values()].flat().flatMap(({ pool }) => (pool.closed ? [] : [pool]));
  const ownFd = addDuplicateFd(context, fd);
  let handle: CUmemoryPool;
  try {
    // The driver has it once a process: destroyed by one worker, it would be gone for all.
    const elsewhere = open.find(({ shared }) => isSameFile(shared.fd, fd));
    if (elsewhere) retainSharedHandle(elsewhere.handle);
    handle = elsewhere?.handle ?? openSharedHandle(() => importHandle(ownFd, descriptor));
  } catch (error) {
    closeContextFd(context, ownFd);
    throw error;
  }
  // By another name, or where open files cannot be compared.
  const same = open.find((pool) => pool.context === context && pool.handle === handle);
  if (!same) return new ImportedPool(context, handle, ownFd, descriptor);
  closeContextFd(context, ownFd);
  releaseSharedHandle(handle, () => {});
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
function describePoolOf(descriptor: IpcPoolDescriptor): IpcPoolDescriptor {
  const { layout: _, readyEvent: __, ...fields } = descriptor;
  const nothing = { baseByteLength: 0, byteOffset: 0, byteLength: 0, bufferId: 0, generation: 0 };
  return withChecksum<'pool'>({ ...fields, ...nothing, access: 'read-write', handle: null });
}

/**
 * How many bytes one allocation of a pool may have that goes to another process. Of a larger one the
 * driver ends the process that opens it: SIGSEGV inside cuMemPoolImportPointer. Seen with driver 580,
 * with 5.25 GiB and above, not in each run; 5 GiB always works. Neither the size of the pool matters nor
 * what else is in it.
 * A driver that was not tried is taken to do the same.
 */
const SAFE_BYTE_LENGTH = 5 * 2 ** 30;
const LIMIT_VARIABLE = 'CUFFI_POOL_SHARE_LIMIT';

/**
 * Why an allocation of a pool is too large to go to another process; undefined where it is not.
 *
 * @param byteLength of the whole allocation
 * @throws RangeError where the limit of the environment is not a number
 */
function sizeBlocker(byteLength: number): OpenBlocker | undefined {
  // The environment is not read for what works anyway: that costs more than the rest.
  if (byteLength <= SAFE_BYTE_LENGTH) return undefined;
  const limit = Math.max(SAFE_BYTE_LENGTH, numberFromEnvironment(LIMIT_VARIABLE, SAFE_BYTE_LENGTH));
  if (byteLength <= limit) return undefined;
  return {
    code: 'not-supported',
    reason:
      `${byteLength} bytes of a memory pool, in one allocation, cannot be shared: above ${limit} bytes ` +
      'the driver ends the process that opens it (SIGSEGV in cuMemPoolImportPointer, seen with driver 580)',
    hint:
      'Share virtual memory (VirtualMemory.reserve(byteLength, { shareable: true })), or several ' +
      `allocations. If the driver is known to open larger ones, set ${LIMIT_VARIABLE} to the bytes of the ` +
      'largest in both processes.',
  };
}

/** As {@link sizeBlocker}, of what a descriptor says of its allocation. */
export const poolBlocker = (descriptor: IpcDescriptor): OpenBlocker | undefined =>
  descriptor.kind === 'pool' ? sizeBlocker(descriptor.baseByteLength) : undefined;
