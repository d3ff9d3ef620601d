import { IpcError } from '../errors.ts';
import { CudaEvent } from '../event.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { MemoryPool } from '../memory/pool.ts';
import { VirtualMemory } from '../memory/virtual.ts';
import {
  type IpcBufferDescriptor,
  type IpcEventDescriptor,
  type IpcMemoryDescriptor,
  sealDescriptor,
} from './descriptor.ts';
import { exportLegacy } from './export-legacy.ts';
import { exportPool, exportPoolMemory } from './export-pool.ts';
import { exportVirtual } from './export-virtual.ts';
import { rememberExport } from './exports.ts';
import { exporter } from './here.ts';
import { ImportedPool } from './imported-pool.ts';
import { forwardBuffer, type Origin, originOf } from './origin.ts';
import type { Parcel } from './parcel.ts';

/** What can be shared with another process. Virtual memory arrives as the buffer that it is. */
export type Shareable = DeviceBuffer | CudaEvent | MemoryPool | ImportedPool | VirtualMemory;

/**
 * A descriptor by which another process of this machine can open plain memory or an event: nothing
 * but data, for `process.send`, JSON or Python. What came from another process is named as it came.
 *
 * The whole allocation becomes visible to whoever gets it, and small allocations share blocks of
 * 2 MiB. Nothing but this process keeps the memory alive: keep the buffer open until the other
 * one is done with it. A descriptor carries no order: synchronise before it is sent, or send an
 * event with it.
 *
 * @throws IpcError for memory without a legacy handle, such as that of pools (see
 * {@link exportIpc}), and for events made without `{ interprocess: true }`
 * @example
 * child.send(getIpcHandle(buffer));
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function getIpcHandle(buffer: DeviceBuffer): IpcBufferDescriptor;
export function getIpcHandle(event: CudaEvent): IpcEventDescriptor;
export function getIpcHandle(
  source: DeviceBuffer | CudaEvent,
): IpcBufferDescriptor | IpcEventDescriptor {
  if (source instanceof CudaEvent) return exportEvent(source);
  if (!(source instanceof DeviceBuffer))
    throw new TypeError('getIpcHandle takes a DeviceBuffer or a CudaEvent');
  if (source.resource instanceof MemoryPool || source.resource instanceof ImportedPool)
    throw new IpcError(
      'memory of a pool has no legacy IPC handle: share it with exportIpc, or allocate what is to ' +
        'be shared as plain device memory (DeviceBuffer.allocate without { memory }, or DeviceMemory)',
    );
  const origin = originOfBuffer(source);
  if (!origin) return exportLegacy(source);
  if (origin.descriptor.kind !== 'legacy')
    throw new IpcError('imported virtual memory has no legacy IPC handle: share it with exportIpc');
  checkNotEmpty(source);
  return forwardBuffer(source, origin).descriptor as IpcBufferDescriptor;
}

/**
 * What another process of this machine opens with `openIpc`: a descriptor, and the file
 * descriptors to send beside it, through a Unix socket. They stay this process's: keep what is
 * shared open until they are sent, and do not close them.
 *
 * Memory of a pool made with `{ shareable: true }` shows nothing but what was allocated, and so does
 * virtual memory made with it, whose pieces alone go along that the buffer lies in. All else is
 * shared as with {@link getIpcHandle}, without file descriptors. What came from another process is
 * passed on as it came. A buffer of `buffer.readOnly()` cannot be written to where it arrives.
 *
 * The allocation must have happened: synchronise the pool's stream before this is sent.
 *
 * @throws IpcError for what was not made for other processes
 * @example
 * const { descriptor, fds } = exportIpc(pool.allocate(4096));
 * sendMessage(socket, encodeDescriptor(descriptor), fds);
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html
 */
export function exportIpc(object: Shareable): Parcel {
  if (object instanceof DeviceBuffer) return exportBuffer(object);
  if (object instanceof CudaEvent) return { descriptor: exportEvent(object), fds: [] };
  if (object instanceof MemoryPool) return exportPool(object);
  if (object instanceof ImportedPool) {
    object.handle; // a closed pool is refused
    return { descriptor: object.descriptor, fds: [object.shared.fd] };
  }
  if (object instanceof VirtualMemory) return exportBuffer(object.buffer);
  throw new TypeError('exportIpc takes a buffer, an event, a memory pool or virtual memory');
}

/** Whether it is anything that can be shared, well or badly made. */
export const isShareable = (object: object): object is Shareable =>
  object instanceof DeviceBuffer ||
  object instanceof CudaEvent ||
  object instanceof MemoryPool ||
  object instanceof ImportedPool ||
  object instanceof VirtualMemory;

function exportBuffer(buffer: DeviceBuffer): Parcel {
  checkNotEmpty(buffer);
  const source = originOfBuffer(buffer);
  if (source) return forwardBuffer(buffer, source);
  const { resource, keeper, origin } = buffer;
  if (resource instanceof MemoryPool) return exportPoolMemory(buffer, resource);
  if (origin === 'allocated' && keeper instanceof VirtualMemory)
    return exportVirtual(buffer, keeper);
  return { descriptor: exportLegacy(buffer), fds: [] };
}

/** What a buffer of another process was opened with. */
const originOfBuffer = ({ origin, whole }: DeviceBuffer) =>
  origin === 'imported' ? (originOf(whole) as Origin<IpcMemoryDescriptor> | undefined) : undefined;

function checkNotEmpty({ address, byteLength }: DeviceBuffer): void {
  if (byteLength === 0) throw new RangeError(`an empty buffer (at ${address}) cannot be shared`);
}

function exportEvent(event: CudaEvent): IpcEventDescriptor {
  const { ipcBytes } = event;
  // Asking for the handle says whether it is closed.
  const origin = event.handle ? originOf(event) : undefined;
  if (origin) return origin.descriptor as IpcEventDescriptor;
  if (!ipcBytes)
    throw new IpcError(
      'this event is not for other processes: make it with CudaEvent.create({ interprocess: true })',
    );
  const handle = Buffer.from(ipcBytes).toString('base64');
  rememberExport(`event ${handle}`, event);
  return sealDescriptor<'event'>({
    kind: 'event',
    ...exporter(event.context.device.uuid),
    handle,
  });
}
