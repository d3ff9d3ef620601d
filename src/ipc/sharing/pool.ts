/** Memory pools, and memory of them. */

import { BLOCK, OUT0, readBase64, readHandle } from '../../../ffi/arena.ts';
import {
  CU_IPC_HANDLE_SIZE,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
} from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import { isSameFile } from '../../../ffi/linux/libc.ts';
import { readSetting } from '../../../ffi/settings.ts';
import type { Address, CUmemoryPool } from '../../../ffi/types.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import { IpcError } from '../../errors.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import { addDuplicateFd, closeContextFd } from '../../memory/physical-memory.ts';
import { MemoryPool } from '../../memory/pool.ts';
import { isSharedPool } from '../../memory/pool-state.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import { formatBytes } from '../../validate.ts';
import {
  openSharedHandle,
  releaseSharedHandle,
  retainSharedHandle,
} from '../../waits/worker-tables.ts';
import type { DescriptorFields, ExportedFields } from '../descriptor.ts';
import {
  blockedError,
  checkOpened,
  fdBlocker,
  type OpenBlocker,
  refuseReadOnly,
} from './blockers.ts';
import { poolForPeer, poolFromPeer } from './connection-pools.ts';
import { describeExporter, exportIdOf, rememberExport } from './facts.ts';
import { ImportedPool, isPoolMemoryMapped, POOL_ITSELF } from './imported-pool.ts';
import type { DescribedKind, OpenRequest, ReceivedFds, SampleMemory } from './kind.ts';
import {
  asArray,
  bufferIn,
  checkMemory,
  exportMemory,
  isShareableMemory,
  type MemoryKind,
  memoryTraits,
  type ShareableMemory,
  sourceOf,
} from './memory.ts';
import { openDescriptor } from './open.ts';
import { memoryProbe } from './probe.ts';

type PoolFields = DescriptorFields<'pool'>;

const ALWAYS_WRITABLE = 'memory of a pool';

/** What the rows of pools and of their memory have in common. */
const poolTraits = {
  name: 'pool',
  noun: 'memory',
  capability: 'pools',
  alwaysWritable: ALWAYS_WRITABLE,
  forPeer: poolForPeer,
  fromPeer: poolFromPeer,
  blocker: (fields, context, fds) =>
    sizeBlocker(fields.baseByteLength) ??
    (findPool(context, fields, fds) ? undefined : fdBlocker('a pool', 1, fds.numbers)),
} satisfies Partial<DescribedKind<MemoryPool | ImportedPool | ShareableMemory, PoolFields>>;

/** A pool itself. */
export const pool: DescribedKind<MemoryPool | ImportedPool, PoolFields> = {
  ...poolTraits,
  opener: 'openIpcPool',
  includes: (object) => object instanceof MemoryPool || object instanceof ImportedPool,
  describes: isPoolItself,
  description: 'a memory pool, by its file descriptor',
  check(fields) {
    const { baseByteLength, layout, readyEvent } = fields;
    checkMemory(fields, baseByteLength > 0 || layout || readyEvent ? INCONSISTENT : undefined);
  },
  deviceOf: ({ context }) => context.device,
  export: exportPool,
  import: (fields, ...given) => openDescriptor(pool, fields, ...given),
  open(request) {
    request.assertOpenable();
    const opened = importPool(request);
    opened.addUser();
    if (request.lease) opened.addLease(request.lease);
    return opened;
  },
  isKeptByFds: () => true,
  nameOf: ({ pool: id }) => `pool ${id}`,
  alias(exported, _fields, { lease, verify }) {
    if (!(exported instanceof MemoryPool)) return undefined;
    verify(exported);
    exported.assertOpen();
    lease?.released();
    return exported;
  },
  discard(object) {
    // A pool that others use stays open.
    if (object instanceof ImportedPool) object.removeUser();
  },
};

/** Memory of a pool. */
export const poolMemory: MemoryKind<PoolFields> = {
  ...memoryTraits,
  ...poolTraits,
  includes(object): object is ShareableMemory {
    if (!isShareableMemory(object) || object instanceof VirtualMemory) return false;
    const buffer = bufferIn(object);
    return buffer.resource instanceof MemoryPool || sourceOf(buffer)?.descriptor.kind === 'pool';
  },
  describes: (fields) => !isPoolItself(fields),
  description: 'memory of a pool, by the file descriptor of the pool',
  check: (fields) => checkMemory(fields, fields.byteLength > 0 ? undefined : INCONSISTENT),
  export: (memory) => exportMemory(memory, exportPoolMemory, ALWAYS_WRITABLE),
  import: (fields, ...given) => asArray(openDescriptor(poolMemory, fields, ...given), fields),
  open: (request) => importPool(request).openBuffer(request.descriptor.handle as string, request),
  allocate,
  isMapped(fields, context, fds) {
    const open = findPool(context, fields, fds);
    return open !== undefined && isPoolMemoryMapped(open, fields);
  },
  probes: [
    memoryProbe(
      {
        name: 'pool',
        title: 'pool',
        how: 'memory of a pool, by file descriptor',
        capability: 'pools',
      },
      allocate,
    ),
  ],
};

const INCONSISTENT = 'the pool itself has size 0, and memory of the pool has a size above 0';

/** Whether a descriptor is of a pool, and not of memory of one. */
function isPoolItself({ handle }: PoolFields): boolean {
  return handle === null;
}

/** Pools allocate from the device in steps smaller than this. */
const POOL_STEP = 64 << 20;

function allocate(byteLength: number, context: Context): SampleMemory {
  const own = MemoryPool.create({ context, maxSize: byteLength + POOL_STEP, shareable: true });
  try {
    const buffer = own.allocate(byteLength);
    return { buffer, [Symbol.dispose]: () => own.close({ buffers: true }) };
  } catch (error) {
    own.close();
    throw error;
  }
}

/** Exports a pool itself. @throws IpcError for a pool that was not made for sharing */
function exportPool(object: MemoryPool | ImportedPool): ExportedFields<'pool'> {
  if (object instanceof ImportedPool) {
    object.assertOpen();
    return { descriptor: object.descriptor, fds: [object.shared.fd] };
  }
  const { id, fd } = object.share();
  rememberExport(`pool ${id}`, object);
  const exporter = describeExporter(object.context.device);
  return { descriptor: { kind: 'pool', ...exporter, pool: id, ...POOL_ITSELF }, fds: [fd] };
}

/**
 * Exports memory of a pool. The driver names an allocation by its first address only.
 *
 * @throws IpcError for read-only memory, and for an allocation that crashes the receiver's driver
 */
function exportPoolMemory(buffer: DeviceBuffer): ExportedFields<'pool'> {
  const { readableAddress: address, byteLength, access, root, context } = buffer;
  if (access === 'read') refuseReadOnly(ALWAYS_WRITABLE);
  const tooLarge = sizeBlocker(root.byteLength);
  if (tooLarge) throw blockedError(tooLarge);
  const { id, fd } = (buffer.resource as MemoryPool).share();
  const base = root.readableAddress;
  check(
    cu.cuMemPoolExportPointer(BLOCK, base),
    'cuMemPoolExportPointer',
    () => `sharing ${formatBytes(root.byteLength)} of a memory pool`,
  );
  // Read at once: describing the exporter may call the driver.
  const handle = readBase64(BLOCK, CU_IPC_HANDLE_SIZE);
  const descriptor = {
    kind: 'pool',
    ...describeExporter(context.device),
    pool: id,
    handle,
    baseByteLength: root.byteLength,
    byteOffset: address - base,
    byteLength,
    access,
    bufferId: 0,
    generation: exportIdOf(root),
  } as const;
  return { descriptor, fds: [fd] };
}

/**
 * The largest pool allocation that can be shared. A larger one crashes the process that opens it,
 * with SIGSEGV inside cuMemPoolImportPointer. Seen with driver 580 at 5.25 GiB and above, not in
 * each run; 5 GiB always works. The size and the other contents of the pool do not matter. Untested
 * drivers are assumed to do the same.
 */
const SAFE_BYTE_LENGTH = 5 * 2 ** 30;
const LIMIT_VARIABLE = 'CUFFI_POOL_SHARE_LIMIT';

/**
 * Returns why an allocation of a pool is too large to share; undefined if it is not.
 *
 * @param byteLength the size of the whole allocation
 * @throws RangeError if the environment variable is not a number
 */
function sizeBlocker(byteLength: number): OpenBlocker | undefined {
  // Reading the environment costs more than the rest, so it is read only for large allocations.
  if (byteLength <= SAFE_BYTE_LENGTH) return undefined;
  const limit = Math.max(SAFE_BYTE_LENGTH, readSetting(LIMIT_VARIABLE) ?? SAFE_BYTE_LENGTH);
  if (byteLength <= limit) return undefined;
  return {
    code: 'not-supported',
    reason:
      `a pool allocation of ${formatBytes(byteLength)} cannot be shared: above ${formatBytes(limit)} ` +
      'the driver crashes the process that opens it (SIGSEGV in cuMemPoolImportPointer, seen with driver 580)',
    hint:
      'Share virtual memory (VirtualMemory.reserve(byteLength, { shareable: true })), or several ' +
      `allocations. If the driver is known to open larger ones, set ${LIMIT_VARIABLE} to the bytes of the ` +
      'largest in both processes.',
  };
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

const identityOf = ({ pid, startTime, pidNamespace, pool }: PoolFields): string =>
  `${pid} ${startTime} ${pidNamespace} ${pool}`;

/** The file descriptors that came with a descriptor of a pool. */
type PoolFds = Pick<ReceivedFds, 'numbers' | 'isNameTrusted'>;

/**
 * Returns the open pool of a descriptor in a context: the pool of the same open file. Without a
 * file descriptor, the one pool whose identity is trusted.
 */
const findPool = (
  context: Context,
  descriptor: PoolFields,
  fds: PoolFds,
): ImportedPool | undefined => findOpenPool(context, descriptor, fds)?.pool;

function findOpenPool(
  context: Context,
  descriptor: PoolFields,
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
function importPool(request: OpenRequest<PoolFields>): ImportedPool {
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

function importNew(context: Context, descriptor: PoolFields, fd: number): ImportedPool {
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

function importHandle(fd: number, { pid }: PoolFields): CUmemoryPool {
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
