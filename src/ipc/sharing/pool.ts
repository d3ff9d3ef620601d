import { BLOCK, OUT0, readBase64, readHandle } from '../../../ffi/arena.ts';
import {
  CU_IPC_HANDLE_SIZE,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
} from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import { isSameFile } from '../../../ffi/linux/libc.ts';
import type { Address, CUmemoryPool } from '../../../ffi/types.ts';
import { check, cudaError } from '../../check.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import type { Access, DeviceBuffer } from '../../memory/buffer.ts';
import { addDuplicateFd, closeContextFd } from '../../memory/context-fds.ts';
import { bufferIdOf } from '../../memory/pointer-attributes.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import { isSharedPool } from '../../memory/pool-state.ts';
import { numberFromEnvironment } from '../../release-queue.ts';
import type { Exported, IpcDescriptor, IpcPoolDescriptor } from '../descriptor.ts';
import { withChecksum } from '../descriptor-bytes.ts';
import { describeExporter } from '../identity.ts';
import { checkExportAccess } from './access.ts';
import { exportIdOf, rememberExport } from './export-id.ts';
import { setImportSource } from './import-source.ts';
import { ImportedPool } from './imported-pool.ts';
import type { ImportLease } from './ownership.ts';
import type { ReceivedFds } from './received-fds.ts';
import { type OpenBlocker, throwIfBlocked } from './support.ts';
import { openSharedHandle, releaseSharedHandle, retainSharedHandle } from './worker-counts.ts';

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

/** A pool of another process, or memory of it. @throws IpcError */
export function openPool(
  context: Context,
  descriptor: IpcPoolDescriptor,
  fds: ReceivedFds,
  access: Access,
  lease: ImportLease | undefined,
): DeviceBuffer | ImportedPool {
  const pool = importPool(context, descriptor, fds);
  if (descriptor.handle === null) {
    pool.keepOpen();
    if (lease) pool.addLease(lease);
    return pool;
  }
  const buffer = pool.openBuffer(descriptor.handle, descriptor, access, lease);
  setImportSource(buffer, { descriptor, fds: () => [pool.shared.fd] });
  return buffer;
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
