/** How a buffer is exported: as the kind of memory that it is, or as it came from another process. */

import { IpcError } from '../../errors.ts';
import type { DeviceBuffer } from '../../memory/buffer.ts';
import { MemoryPool } from '../../memory/pool.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import type { Exported, IpcBufferDescriptor, IpcMemoryDescriptor } from '../descriptor.ts';
import { type ImportSource, importSourceOf, reexportBuffer } from './import-source.ts';
import { ImportedPool } from './imported-pool.ts';
import { exportLegacy } from './legacy.ts';
import { exportPoolMemory } from './pool.ts';
import { exportVirtual } from './virtual.ts';
import { publish } from './worker-exports.ts';

/**
 * Called for exported memory with the buffer, the address of its first byte, and its descriptor.
 */
export type OnExport = typeof publish;

/** Exports a buffer in the way that its memory allows. @throws IpcError, RangeError for an empty one */
export function exportBuffer(buffer: DeviceBuffer, onExport: OnExport | undefined): Exported {
  const exported = describeBuffer(buffer);
  onExport?.(buffer, buffer.address, exported.descriptor as IpcMemoryDescriptor);
  return exported;
}

/** Exports a buffer by its legacy handle. @throws IpcError for memory without one, RangeError for an empty one */
export function exportLegacyBuffer(buffer: DeviceBuffer): IpcBufferDescriptor {
  if (buffer.resource instanceof MemoryPool || buffer.resource instanceof ImportedPool)
    throw new IpcError(
      'memory of a pool has no legacy IPC handle: share it with exportIpc, or allocate the memory ' +
        'as plain device memory (DeviceBuffer.allocate without { memory }, or DeviceMemory)',
    );
  const source = importSourceOfBuffer(buffer);
  if (!source) {
    const descriptor = exportLegacy(buffer);
    publish(buffer, buffer.address, descriptor);
    return descriptor;
  }
  if (source.descriptor.kind !== 'legacy')
    throw new IpcError('imported virtual memory has no legacy IPC handle: share it with exportIpc');
  checkNotEmpty(buffer);
  return reexportBuffer(buffer, source).descriptor as IpcBufferDescriptor;
}

function describeBuffer(buffer: DeviceBuffer): Exported {
  checkNotEmpty(buffer);
  const source = importSourceOfBuffer(buffer);
  if (source) return reexportBuffer(buffer, source);
  const { resource, keepalive, origin } = buffer;
  if (resource instanceof MemoryPool) return exportPoolMemory(buffer, resource);
  if (origin === 'allocated' && keepalive instanceof VirtualMemory)
    return exportVirtual(buffer, keepalive);
  return { descriptor: exportLegacy(buffer), fds: [] };
}

/** The import source of an imported buffer. */
const importSourceOfBuffer = ({ origin, root }: DeviceBuffer) =>
  origin === 'imported'
    ? (importSourceOf(root) as ImportSource<IpcMemoryDescriptor> | undefined)
    : undefined;

function checkNotEmpty({ address, byteLength }: DeviceBuffer): void {
  if (byteLength === 0) throw new RangeError(`an empty buffer (at ${address}) cannot be shared`);
}
