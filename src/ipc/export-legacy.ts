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
import { type IpcBufferDescriptor, sealDescriptor } from './descriptor.ts';
import { generationOf } from './exports.ts';
import { exporter } from './here.ts';

/** Memory by the driver's 64 bytes, which name all of its allocation. @throws IpcError */
export function exportLegacy(buffer: DeviceBuffer): IpcBufferDescriptor {
  const { address, byteLength, context, origin, access, whole, resource } = buffer;
  if (whole instanceof HostVisibleBuffer)
    throw new IpcError(
      'memory that the CPU reaches has no IPC handle: copy it to device memory, and share that',
    );
  if (byteLength === 0) throw new RangeError('an empty buffer cannot be shared');
  const { handle, base } =
    resource instanceof ManagerMemory
      ? resource.nameAllocation(buffer)
      : context.run(() => ({
          handle: legacyHandle(address, byteLength),
          base: allocationBase(address),
        }));
  const { baseByteLength, bufferId } = context.run(() => ({
    baseByteLength: allocationByteLength(base),
    bufferId: bufferIdOf(base),
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
