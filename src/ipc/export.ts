import { BLOCK, OUT0, OUT1, readBytes, readHandle, readSize } from '../../ffi/arena.ts';
import { CU_IPC_HANDLE_SIZE, CU_POINTER_ATTRIBUTE_BUFFER_ID } from '../../ffi/constants.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr } from '../../ffi/types.ts';
import { check, cudaError } from '../check.ts';
import { IpcError } from '../errors.ts';
import { CudaEvent } from '../event.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { MemoryPool } from '../memory/pool.ts';
import { type IpcBufferDescriptor, type IpcEventDescriptor, sealDescriptor } from './descriptor.ts';

/**
 * A descriptor by which another process of this machine can open a buffer or an event.
 *
 * The whole allocation becomes visible to whoever gets it, and small allocations share blocks of
 * 2 MiB. Nothing but this process keeps the memory alive: keep the buffer open until the other
 * one is done with it. A descriptor carries no order: synchronise before it is sent, or send an
 * event with it.
 *
 * @throws IpcError for memory of another process (pass its descriptor on instead), for memory
 * without a legacy handle, and for events made without `{ interprocess: true }`
 * @example
 * child.send(getIpcHandle(buffer));
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function getIpcHandle(buffer: DeviceBuffer): IpcBufferDescriptor;
export function getIpcHandle(event: CudaEvent): IpcEventDescriptor;
export function getIpcHandle(
  source: DeviceBuffer | CudaEvent,
): IpcBufferDescriptor | IpcEventDescriptor {
  if (source instanceof DeviceBuffer) return exportBuffer(source);
  if (source instanceof CudaEvent) return exportEvent(source);
  throw new TypeError('getIpcHandle takes a DeviceBuffer or a CudaEvent');
}

function exportBuffer(buffer: DeviceBuffer): IpcBufferDescriptor {
  const { address, byteLength, context, origin, resource } = buffer;
  if (origin === 'imported')
    throw new IpcError(
      'this buffer belongs to another process: pass on the descriptor that it was opened with',
    );
  if (resource instanceof MemoryPool)
    throw new IpcError(
      'memory of a pool has no legacy IPC handle: allocate what is to be shared as plain device ' +
        'memory (DeviceBuffer.allocate without { memory }, or DeviceMemory)',
    );
  if (byteLength === 0) throw new RangeError('an empty buffer cannot be shared');
  const { handle, base, bufferId } = context.run(() => nameAllocation(address, byteLength));
  return sealDescriptor<'legacy'>({
    kind: 'legacy',
    version: 1,
    handle,
    byteOffset: address - base,
    byteLength,
    bufferId,
    device: context.device.uuid,
    pid: process.pid,
  });
}

/** What the driver calls the allocation that `address` lies in, whatever part of it that is. */
function nameAllocation(address: CUdeviceptr, byteLength: number) {
  const status = cu.cuIpcGetMemHandle(BLOCK, address);
  if (status !== 0)
    throw new IpcError(
      'this memory has no legacy IPC handle',
      cudaError(status, 'cuIpcGetMemHandle', `exporting ${byteLength} bytes`),
    );
  const handle = Buffer.from(readBytes(BLOCK, CU_IPC_HANDLE_SIZE)).toString('base64');
  check(cu.cuMemGetAddressRange_v2(OUT0, OUT1, address), 'cuMemGetAddressRange_v2');
  const base = readHandle<CUdeviceptr>(OUT0);
  check(
    cu.cuPointerGetAttribute(OUT0, CU_POINTER_ATTRIBUTE_BUFFER_ID, base),
    'cuPointerGetAttribute',
  );
  return { handle, base, bufferId: readSize(OUT0) };
}

function exportEvent(event: CudaEvent): IpcEventDescriptor {
  const { ipcBytes, imported } = event;
  // Asking for the handle says whether it is closed.
  if (event.handle && !ipcBytes)
    throw new IpcError(
      imported
        ? 'this event belongs to another process: pass on the descriptor that it was opened with'
        : 'this event is not for other processes: make it with CudaEvent.create({ interprocess: true })',
    );
  return sealDescriptor<'event'>({
    kind: 'event',
    version: 1,
    handle: Buffer.from(ipcBytes as Uint8Array).toString('base64'),
    device: event.context.device.uuid,
    pid: process.pid,
  });
}
