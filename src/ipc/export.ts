import { IpcError } from '../errors.ts';
import { CudaEvent } from '../event.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { allocationBase, bufferIdOf, legacyHandle } from '../memory/legacy-handle.ts';
import { ManagerMemory } from '../memory/manager/manager-memory.ts';
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
  const { handle, base } =
    resource instanceof ManagerMemory
      ? resource.nameAllocation(buffer)
      : context.run(() => ({
          handle: legacyHandle(address, byteLength),
          base: allocationBase(address),
        }));
  return sealDescriptor<'legacy'>({
    kind: 'legacy',
    version: 1,
    handle: Buffer.from(handle).toString('base64'),
    byteOffset: address - base,
    byteLength,
    bufferId: context.run(() => bufferIdOf(base)),
    device: context.device.uuid,
    pid: process.pid,
  });
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
