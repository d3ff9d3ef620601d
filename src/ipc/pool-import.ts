/** The pools of other processes that are open here, each once a context. */
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { isSameFile } from '../../ffi/libc.ts';
import type { Address, CUmemoryPool } from '../../ffi/types.ts';
import { cudaError } from '../check.ts';
import type { Context } from '../context.ts';
import { IpcError } from '../errors.ts';
import { closeKeptFd, keepDuplicate } from '../memory/kept-fds.ts';
import { isSharedPool } from '../memory/pool-books.ts';
import type { IpcPoolDescriptor } from './descriptor.ts';
import { ImportedPool } from './imported-pool.ts';
import type { ReceivedFds } from './owned-fds.ts';
import { closeSharedHandle, openSharedHandle, shareHandle } from './shared-counts.ts';

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
