import { BLOCK, readBase64 } from '../../../ffi/arena.ts';
import { CU_IPC_HANDLE_SIZE } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import { readSetting } from '../../../ffi/settings.ts';
import { check } from '../../check.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import { formatBytes } from '../../validate.ts';
import { checkReadOnlyKind, type DescriptorFields, type ExportedFields } from '../descriptor.ts';
import { describeExporter } from '../identity.ts';
import { exportIdOf, rememberExport } from './exported.ts';
import { blockedError, type OpenBlocker } from './support.ts';

/** Exports a pool itself. @throws IpcError for a pool that was not made for sharing */
export function exportPool(pool: MemoryPool): ExportedFields<'pool'> {
  const { id, fd } = pool.share();
  rememberExport(`pool ${id}`, pool);
  const exporter = describeExporter(pool.context.device);
  return { descriptor: { kind: 'pool', ...exporter, pool: id, ...POOL_ITSELF }, fds: [fd] };
}

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

/**
 * Exports memory of a pool. The driver names an allocation by its first address only.
 *
 * @throws IpcError for read-only memory, and for an allocation that crashes the receiver's driver
 */
export function exportPoolMemory(buffer: DeviceBuffer, pool: MemoryPool): ExportedFields<'pool'> {
  const { readableAddress: address, byteLength, access, root, context } = buffer;
  if (access === 'read') checkReadOnlyKind('pool');
  const tooLarge = sizeBlocker(root.byteLength);
  if (tooLarge) throw blockedError(tooLarge);
  const { id, fd } = pool.share();
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

/** Like {@link sizeBlocker}, for the allocation of a descriptor. */
export const poolBlocker = (descriptor: DescriptorFields): OpenBlocker | undefined =>
  descriptor.kind === 'pool' ? sizeBlocker(descriptor.baseByteLength) : undefined;
