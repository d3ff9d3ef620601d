/** The pools of other processes that are open here, each once a context. */
import { OUT0, readHandle } from '../../ffi/arena.ts';
import { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { Address, CUmemoryPool } from '../../ffi/types.ts';
import { cudaError } from '../check.ts';
import type { Context } from '../context.ts';
import { IpcError } from '../errors.ts';
import { closeKeptFd, keepDuplicate } from '../memory/kept-fds.ts';
import type { IpcPoolDescriptor } from './descriptor.ts';
import { ImportedPool, nameOfPool } from './imported-pool.ts';
import { useSharedHandle } from './shared-counts.ts';

const pools = new WeakMap<Context, Map<string, ImportedPool>>();

/** The pool that a descriptor names, where it is open in the context. */
export function findPool(context: Context, { pool }: IpcPoolDescriptor): ImportedPool | undefined {
  const known = pools.get(context)?.get(pool);
  return known?.closed ? undefined : known;
}

/**
 * The pool that a descriptor names, imported at its first use in the context.
 *
 * @param fd the pool's file descriptor, which stays its caller's; needed where the pool is not open
 * @throws IpcError
 */
export function importPool(
  context: Context,
  descriptor: IpcPoolDescriptor,
  fd: number | undefined,
): ImportedPool {
  const known = findPool(context, descriptor);
  if (known) return known;
  if (fd === undefined)
    throw new IpcError(
      `the pool of process ${descriptor.pid} is not open here, and its file descriptor did not come`,
      undefined,
      'no-file-descriptor',
    );
  const own = keepDuplicate(context, fd);
  let handle: CUmemoryPool;
  try {
    // The driver has it once a process: destroyed by one worker, it would be gone for all.
    handle = useSharedHandle(nameOfPool(descriptor), () => importHandle(own, descriptor));
  } catch (error) {
    closeKeptFd(context, own);
    throw error;
  }
  const pool = new ImportedPool(context, handle, own, descriptor);
  const byId = pools.get(context) ?? new Map<string, ImportedPool>();
  for (const [id, { closed }] of byId) if (closed) byId.delete(id);
  pools.set(context, byId.set(descriptor.pool, pool));
  return pool;
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
  return readHandle<CUmemoryPool>(OUT0, cu.cuMemPoolDestroy);
}
