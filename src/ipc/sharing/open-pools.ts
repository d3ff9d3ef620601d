/** The pools of other processes that are open here, each imported once per context. */

import { OUT0, readHandle } from '../../../ffi/arena.ts';
import { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import { isSameFile } from '../../../ffi/linux/libc.ts';
import type { Address, CUmemoryPool } from '../../../ffi/types.ts';
import { cudaError } from '../../check.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import { addDuplicateFd, closeContextFd } from '../../memory/context-fds.ts';
import { isSharedPool } from '../../memory/pool-state.ts';
import {
  openSharedHandle,
  releaseSharedHandle,
  retainSharedHandle,
} from '../../waits/worker-tables.ts';
import type { DescriptorFields } from '../descriptor.ts';
import type { OpenRequest, ReceivedFds } from './imported-object.ts';
import { ImportedPool } from './imported-pool.ts';

/** Opens a pool of another process, or memory of it. @throws IpcError */
export function openPool(request: OpenRequest<'pool'>): DeviceBuffer | ImportedPool {
  const { handle } = request.descriptor;
  if (handle !== null) return importPool(request).openBuffer(handle, request);
  request.assertOpenable();
  const pool = importPool(request);
  pool.addUser();
  if (request.lease) pool.addLease(request.lease);
  return pool;
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
function importPool(request: OpenRequest<'pool'>): ImportedPool {
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
  if (status !== 0)
    throw new IpcError(
      `a memory pool of process ${pid} could not be opened`,
      cudaError(status, 'cuMemPoolImportFromShareableHandle'),
    );
  const handle = readHandle<CUmemoryPool>(OUT0, cu.cuMemPoolDestroy);
  // Closing its last buffer here would destroy this process's own pool.
  if (isSharedPool(handle, fd))
    throw new IpcError(
      `what came as a memory pool of process ${pid} is a pool of this very process: use that pool`,
      undefined,
      'same-process',
    );
  return handle;
}
