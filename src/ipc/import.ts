import { OUT0, readHandle } from '../../ffi/arena.ts';
import { cu } from '../../ffi/driver.ts';
import type { CUdeviceptr, CUevent } from '../../ffi/types.ts';
import { checkOptions } from '../arguments.ts';
import { cudaError } from '../check.ts';
import { Context, type PlaceOptions } from '../context.ts';
import { devices } from '../device.ts';
import { IpcError } from '../errors.ts';
import { CudaEvent } from '../event.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import {
  type IpcBufferDescriptor,
  type IpcEventDescriptor,
  parseDescriptor,
} from './descriptor.ts';
import { acquireMapping, releaseMapping } from './mapping.ts';

/**
 * Opens the memory that another process shared with `getIpcHandle`, without copying it. The
 * message is checked before anything is believed of it.
 *
 * Opened twice, the memory is mapped once; it is unmapped when its last buffer was closed. Close
 * before the exporter frees: the driver promises nothing of memory that was freed while mapped.
 *
 * @param message what came from the other process, e.g. by `process.on('message')`
 * @param options the context to open it in; by default that of the descriptor's GPU
 * @throws IpcError for anything but a sound descriptor of another process and a visible GPU
 * @example
 * process.on('message', (message) => {
 *   using buffer = openIpcBuffer(message);
 *   console.log(buffer.copyToHostSync());
 * });
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function openIpcBuffer(message: unknown, options?: PlaceOptions): DeviceBuffer {
  const place = checkOptions(options, ['context', 'device'], 'openIpcBuffer');
  const descriptor: IpcBufferDescriptor = parseDescriptor('legacy', message);
  const context = contextFor(descriptor, place);
  const mapping = acquireMapping(context, descriptor);
  const { handle, byteOffset, byteLength, pid } = descriptor;
  const release = (): void => releaseMapping(context, handle, mapping);
  if (byteOffset + byteLength > mapping.byteLength) {
    release();
    throw new IpcError(
      `the descriptor names bytes ${byteOffset} to ${byteOffset + byteLength} of an allocation of ` +
        `process ${pid} that has ${mapping.byteLength}`,
    );
  }
  return new DeviceBuffer({
    context,
    address: (mapping.base + byteOffset) as CUdeviceptr,
    byteLength,
    origin: 'imported',
    release,
  });
}

/**
 * Opens an event of another process. Both sides may record, wait for and query it.
 *
 * A stream that waits for it stays blocked for ever if the process that recorded it is killed
 * first: `await event.synchronize()` with a signal does not.
 *
 * @throws IpcError as {@link openIpcBuffer}
 * @see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html
 */
export function openIpcEvent(message: unknown, options?: PlaceOptions): CudaEvent {
  const place = checkOptions(options, ['context', 'device'], 'openIpcEvent');
  const descriptor: IpcEventDescriptor = parseDescriptor('event', message);
  const context = contextFor(descriptor, place);
  const { handle, pid } = descriptor;
  const bytes = { reserved: new Uint8Array(Buffer.from(handle, 'base64')) };
  return context.run(() => {
    const status = cu.cuIpcOpenEventHandle(OUT0, bytes);
    if (status !== 0)
      throw new IpcError(
        `an event of process ${pid} could not be opened`,
        cudaError(status, 'cuIpcOpenEventHandle'),
      );
    const event = readHandle<CUevent>(OUT0, cu.cuEventDestroy_v2);
    return new CudaEvent(context, event, { timing: false, interprocess: true, imported: true });
  });
}

/** Where to open what a descriptor names; what cannot be opened here is refused in words. */
function contextFor(
  { pid, device: uuid }: IpcBufferDescriptor | IpcEventDescriptor,
  place: PlaceOptions,
): Context {
  if (pid === process.pid)
    throw new IpcError(
      `this descriptor was made by this very process (pid ${pid}): use the object that it names, ` +
        'CUDA does not open its own handles. If it came from another container, give the ' +
        'containers one pid namespace, or different pid numbers.',
    );
  if (place.context || place.device !== undefined) return Context.of(place);
  const visible = devices();
  const device = visible.find((candidate) => candidate.uuid === uuid);
  if (device) return Context.primary(device);
  throw new IpcError(
    `the descriptor is of GPU ${uuid}, which this process does not see; it sees ` +
      `${visible.map((candidate) => candidate.uuid).join(', ')}. Make it visible ` +
      '(CUDA_VISIBLE_DEVICES), or name a device with peer access to it in the options.',
  );
}
