import { BLOCK, readBase64 } from '../../../ffi/arena.ts';
import { CU_IPC_HANDLE_SIZE } from '../../../ffi/constants.ts';
import { cu } from '../../../ffi/driver.ts';
import { check } from '../../check.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import { bufferIdOf } from '../../memory/pointer-attributes.ts';
import type { MemoryPool } from '../../memory/pool.ts';
import { numberFromEnvironment } from '../../release-queue.ts';
import type { Exported, IpcDescriptor } from '../descriptor.ts';
import { withChecksum } from '../descriptor-bytes.ts';
import { describeExporter } from '../identity.ts';
import { checkExportAccess } from './access.ts';
import { exportIdOf, rememberExport } from './export-id.ts';
import { type OpenBlocker, throwIfBlocked } from './support.ts';

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
