import { MAX_MESSAGE_FDS } from '../../ffi/message.ts';
import { IpcError } from '../errors.ts';
import type { DeviceBuffer } from '../memory/buffer.ts';
import type { VirtualMemory } from '../memory/virtual.ts';
import { sealDescriptor } from './descriptor.ts';
import { generationOf } from './exports.ts';
import { exporter } from './here.ts';
import type { Parcel } from './parcel.ts';

/** The pieces of virtual memory that a buffer lies in, each by a file descriptor. @throws IpcError */
export function exportVirtual(buffer: DeviceBuffer, memory: VirtualMemory): Parcel {
  if (!memory.shareable)
    throw new IpcError(
      'this virtual memory is not for other processes: reserve it with { shareable: true }',
    );
  const { byteLength, access, context } = buffer;
  const begin = buffer.address - memory.address;
  const { id, first, byteOffset, pieces } = memory.share(
    begin,
    begin + byteLength,
    MAX_MESSAGE_FDS,
    access,
  );
  const sizes = pieces.map((piece) => piece.byteLength);
  const { device, machine, pid, startTime, pidNamespace } = exporter(context.device.uuid);
  // Each field by its name: a spread costs more than all of them.
  const descriptor = sealDescriptor<'virtual'>({
    kind: 'virtual',
    device,
    machine,
    pid,
    startTime,
    pidNamespace,
    memory: id,
    firstPiece: first,
    pieces: sizes,
    baseByteLength: sizes.reduce((sum, size) => sum + size, 0),
    byteOffset,
    byteLength,
    access,
    bufferId: 0,
    generation: generationOf(memory),
  });
  return { descriptor, fds: pieces.map(({ fd }) => fd) };
}
