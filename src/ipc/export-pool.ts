import { BLOCK, readBase64 } from '../../ffi/arena.ts';
import { CU_IPC_HANDLE_SIZE } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import { check } from '../check.ts';
import type { DeviceBuffer } from '../memory/buffer.ts';
import { bufferIdOf } from '../memory/legacy-handle.ts';
import type { MemoryPool } from '../memory/pool.ts';
import { checkShared } from './access.ts';
import { sealDescriptor } from './descriptor.ts';
import { generationOf, rememberExport } from './exports.ts';
import { exporter } from './here.ts';
import type { Parcel } from './parcel.ts';
import { sizeObstacle } from './pool-descriptor.ts';
import { refuse } from './support.ts';

/** A pool itself. @throws IpcError for one that was not made for other processes */
export function exportPool(pool: MemoryPool): Parcel {
  const { id, fd } = pool.share();
  rememberExport(`pool ${id}`, pool);
  const descriptor = sealDescriptor<'pool'>({
    kind: 'pool',
    ...exporter(pool.context.device.uuid),
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
export function exportPoolMemory(buffer: DeviceBuffer, pool: MemoryPool): Parcel {
  const { address, byteLength, access, whole, context } = buffer;
  checkShared('pool', access);
  refuse(sizeObstacle(whole.byteLength));
  const { id, fd } = pool.share();
  const base = whole.address;
  const { handle, bufferId } = context.run(() => {
    check(
      cu.cuMemPoolExportPointer(BLOCK, base),
      'cuMemPoolExportPointer',
      () => `sharing ${whole.byteLength} bytes of a memory pool`,
    );
    return { handle: readBase64(BLOCK, CU_IPC_HANDLE_SIZE), bufferId: bufferIdOf(base) };
  });
  const { device, machine, pid, startTime, pidNamespace } = exporter(context.device.uuid);
  // Each field by its name: a spread costs more than all of them.
  const descriptor = sealDescriptor<'pool'>({
    kind: 'pool',
    device,
    machine,
    pid,
    startTime,
    pidNamespace,
    pool: id,
    handle,
    baseByteLength: whole.byteLength,
    byteOffset: address - base,
    byteLength,
    access,
    bufferId,
    generation: generationOf(whole),
  });
  return { descriptor, fds: [fd] };
}
