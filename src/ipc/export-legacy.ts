import { OUT0, readHandle, writeUint64 } from '../../ffi/arena.ts';
import {
  CU_MEMORYTYPE_HOST,
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
  CU_POINTER_ATTRIBUTE_IS_MANAGED,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
} from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { IpcError } from '../errors.ts';
import type { DeviceBuffer } from '../memory/buffer.ts';
import { HostVisibleBuffer } from '../memory/host-visible.ts';
import {
  allocationBase,
  allocationByteLength,
  bufferIdOf,
  legacyHandle,
} from '../memory/legacy-handle.ts';
import { ManagerMemory } from '../memory/manager/manager-memory.ts';
import { concealed } from '../memory/share-id.ts';
import { VirtualMemory } from '../memory/virtual.ts';
import { checkShared } from './access.ts';
import { type IpcBufferDescriptor, sealDescriptor } from './descriptor.ts';
import { generationOf } from './exports.ts';
import { exporter } from './here.ts';

/** What the driver says of memory that others allocated; undefined where it does not know it. */
function ask(attribute: number, address: CUdeviceptr): number | undefined {
  // Some answers are a byte, some four, some eight.
  writeUint64(0, OUT0);
  const status = cu.cuPointerGetAttribute(OUT0, attribute, address);
  return status === 0 ? readHandle(OUT0) : undefined;
}

/** @throws IpcError for memory of others that has no legacy handle, with what it is */
function checkCapable(address: CUdeviceptr): void {
  if (ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) !== 0) return;
  const isHost =
    ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, address) === 1 ||
    ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) === CU_MEMORYTYPE_HOST;
  const isOfPool = (ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) ?? 0) !== 0;
  const what = isHost
    ? 'memory that the CPU reaches'
    : isOfPool
      ? 'memory of a pool that another library made'
      : 'memory that is virtual, or of another process,';
  throw new IpcError(`${what} has no legacy IPC handle: copy it to device memory, and share that`);
}

/** Memory by the driver's 64 bytes, which name all of its allocation. @throws IpcError */
export function exportLegacy(buffer: DeviceBuffer): IpcBufferDescriptor {
  const { address, byteLength, context, origin, access, whole, resource } = buffer;
  if (whole instanceof HostVisibleBuffer)
    throw new IpcError(
      'memory that the CPU reaches has no IPC handle: copy it to device memory, and share that',
    );
  if (byteLength === 0) throw new RangeError('an empty buffer cannot be shared');
  if (whole.keeper instanceof VirtualMemory)
    throw new IpcError('virtual memory has no legacy IPC handle: share it with exportIpc');
  checkShared('legacy', access);
  if (origin === 'borrowed') context.run(() => checkCapable(address));
  const { handle, base } =
    resource instanceof ManagerMemory
      ? resource.nameAllocation(buffer)
      : context.run(() => ({
          handle: legacyHandle(address, byteLength),
          base: allocationBase(address),
        }));
  const { baseByteLength, bufferId } = context.run(() => ({
    baseByteLength: allocationByteLength(base),
    bufferId: concealed(bufferIdOf(base)),
  }));
  return sealDescriptor<'legacy'>({
    kind: 'legacy',
    ...exporter(context.device.uuid),
    handle: Buffer.from(handle).toString('base64'),
    baseByteLength,
    byteOffset: address - base,
    byteLength,
    access,
    bufferId,
    generation: origin === 'allocated' ? generationOf(whole) : 0,
  });
}
