import { DeviceArray } from '../../array/device-array.ts';
import type { Dtype } from '../../dtype.ts';
import { IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import { DeviceBuffer } from '../../memory/buffer.ts';
import { type Stream, streamOf } from '../../stream.ts';
import { checkOptions, formatValue } from '../../validate.ts';
import {
  type DescriptorFields,
  type Exported,
  type IpcBufferDescriptor,
  type IpcEventDescriptor,
  isHostFields,
  type MemoryFields,
} from '../descriptor.ts';
import { noteFirstUse } from '../first-use.ts';
import { withChecksum } from './descriptor-codec.ts';
import { exportEvent, recordReady } from './event.ts';
import { bufferOf, kindOf, type Shareable } from './kinds.ts';
import { exportLegacy } from './legacy.ts';
import { bytesOfItems, isShareableMemory, type ShareableMemory, withLayout } from './memory.ts';
import { IpcArrayHandle, IpcBufferHandle, keepExported, ReadyExport } from './memory-handle.ts';

/** Options of {@link getIpcHandle} and {@link exportIpc}. */
export interface ShareOptions {
  /**
   * The stream whose work the other process must wait for, with `ready`. An event is recorded in it
   * now. Default: none, because the memory is ready.
   */
  readonly stream?: Stream;
}

/**
 * Returns a descriptor that another process of this machine can open: plain memory or an event. It
 * is only data, for `process.send`, JSON or Python. An imported object is passed on as it came.
 *
 * The descriptor of an array, and any with `{ stream }`, is also a handle: it keeps the memory
 * until it is closed. Other descriptors keep nothing: keep the buffer open until the other process
 * is done with it.
 *
 * The process that receives it sees the whole allocation, and small allocations share blocks of
 * 2 MiB. A descriptor implies no order unless you pass `{ stream }`: synchronise before sending it,
 * or send an event with it.
 *
 * @throws IpcError for memory without a legacy handle, such as that of pools (see
 * {@link exportIpc}), and for events made without `{ interprocess: true }`
 * @example
 * child.send(getIpcHandle(buffer));
 * @example
 * using handle = getIpcHandle(array, { stream }); // there: IpcArrayHandle.from(message)
 * child.send(handle);
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function getIpcHandle<D extends Dtype>(
  array: DeviceArray<D>,
  options?: ShareOptions,
): IpcArrayHandle<D>;
export function getIpcHandle(
  buffer: DeviceBuffer,
  options: ShareOptions & { readonly stream: Stream },
): IpcBufferHandle;
export function getIpcHandle(buffer: DeviceBuffer): IpcBufferDescriptor;
export function getIpcHandle(event: CudaEvent): IpcEventDescriptor;
export function getIpcHandle(
  source: DeviceArray | DeviceBuffer | CudaEvent,
  options?: ShareOptions,
): IpcArrayHandle | IpcBufferHandle | IpcBufferDescriptor | IpcEventDescriptor {
  const { stream } = checkShareOptions(options, 'getIpcHandle');
  assertNotCapturing('sharing');
  if (source instanceof DeviceArray) {
    const bytes = exportLegacy(bytesOfItems(source, false));
    const fields = published(source, withLayout(bytes, source));
    return new IpcArrayHandle(keepExported(source.buffer, fields, stream));
  }
  if (source instanceof CudaEvent && !stream)
    return withChecksum(published(source, exportEvent(source)));
  if (!(source instanceof DeviceBuffer))
    throw new TypeError(
      stream
        ? `getIpcHandle with a stream takes a DeviceArray or a DeviceBuffer, not ${formatValue(source)}`
        : `getIpcHandle takes a DeviceArray, a DeviceBuffer or a CudaEvent, not ${formatValue(source)}`,
    );
  const fields = published(source, exportLegacy(source));
  return stream ? new IpcBufferHandle(keepExported(source, fields, stream)) : withChecksum(fields);
}

/**
 * Returns what another process of this machine opens with `openIpc`: a descriptor, and the file
 * descriptors to send with it through a Unix socket. This process owns the file descriptors: keep
 * the object open until they are sent, and do not close them.
 *
 * Memory of a pool made with `{ shareable: true }` exposes only the allocation. Virtual memory made
 * with it exposes only the pieces that contain the buffer. Other memory is shared as with
 * {@link getIpcHandle}, without file descriptors. An imported object is passed on as it came.
 *
 * A buffer of `buffer.readOnly()` or a read-only array can be shared if it is virtual memory. cuffi
 * maps it without write access in the receiver, and the driver refuses writes there. A process that
 * imports the file descriptors without cuffi can give itself any access.
 *
 * The allocation must have happened: synchronise the pool's stream before sending this, or share it
 * with `{ stream }`. Close the result when the other process has finished waiting.
 *
 * @throws IpcError for objects not made for sharing, and for read-only memory that is not virtual
 * memory; RangeError for memory without bytes
 * @example
 * const { descriptor, fds } = exportIpc(pool.allocate(4096));
 * sendMessage(socket, encodeDescriptor(descriptor), fds);
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html
 */
export function exportIpc(
  memory: ShareableMemory,
  options: ShareOptions & { readonly stream: Stream },
): ReadyExport;
export function exportIpc(object: Shareable): Exported;
export function exportIpc(object: Shareable, options?: ShareOptions): Exported {
  const { stream } = checkShareOptions(options, 'exportIpc');
  assertNotCapturing('sharing');
  const kind = typeof object === 'object' && object !== null ? kindOf(object) : undefined;
  if (!kind)
    throw new TypeError(
      `exportIpc takes an array, a buffer, an event, a memory pool or virtual memory, not ${formatValue(object)}`,
    );
  if (stream && !isShareableMemory(object))
    throw new TypeError(
      `exportIpc with a stream takes an array, a buffer or virtual memory, not ${formatValue(object)}`,
    );
  const { descriptor, fds } = kind.export(object);
  if (isHostFields(descriptor))
    throw new IpcError(
      `a ${descriptor.kind} has no descriptor: send it over a connection, with peer.send()`,
      undefined,
      'not-supported',
    );
  published(object, descriptor);
  if (!stream) return { descriptor: withChecksum(descriptor), fds };
  bufferOf(object)?.orderUse(stream);
  return new ReadyExport(descriptor as MemoryFields, fds, recordReady(stream));
}

/** Returns the fields after letting the other threads of this process open what they describe. */
function published<F extends DescriptorFields>(object: Shareable, fields: F): F {
  noteFirstUse();
  kindOf(object)?.publish?.(object, fields);
  return fields;
}

function checkShareOptions(options: ShareOptions | undefined, call: string): ShareOptions {
  const { stream } = checkOptions(options, ['stream'], call);
  const ordered = streamOf(stream);
  return ordered ? { stream: ordered } : {};
}
