/** Memory pools, and memory of them. */

import { BLOCK, readBase64 } from '../../../ffi/arena.ts';
import { CU_IPC_HANDLE_SIZE } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import { readSetting } from '../../../ffi/settings.ts';
import { check } from '../../check.ts';
import type { Context } from '../../context.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import { MemoryPool } from '../../memory/pool.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import { formatBytes } from '../../validate.ts';
import type { DescriptorFields, ExportedFields } from '../descriptor.ts';
import { blockedError, fdBlocker, type OpenBlocker } from './blockers.ts';
import { poolForPeer, poolFromPeer } from './connection-pools.ts';
import { describeExporter, exportIdOf, rememberExport } from './facts.ts';
import {
  findPool,
  ImportedPool,
  importPool,
  isPoolMemoryMapped,
  POOL_ITSELF,
} from './imported-pool.ts';
import type { DescribedKind, SampleMemory } from './kind.ts';
import {
  asArray,
  bufferIn,
  checkMemory,
  exportMemory,
  isShareableMemory,
  type MemoryKind,
  memoryProbe,
  memoryTraits,
  type ShareableMemory,
  sourceOf,
} from './memory.ts';
import { openDescriptor } from './open.ts';

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
