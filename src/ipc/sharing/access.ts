/**
 * What may be done with memory of another process. The driver keeps from writing only where virtual
 * memory is mapped: then its importer alone says how. So memory is shared for reading as virtual
 * memory or not at all, and what opens it does not go by the word of its descriptor alone.
 */
import { isForReading } from '../../../ffi/fd-kind.ts';
import { IpcError } from '../../errors.ts';
import type { Access } from '../../memory/buffer.ts';
import type { IpcDescriptor, IpcKind, IpcMemoryDescriptor } from '../descriptor.ts';
import type { OpenBlocker } from './support.ts';

/** What it is, where it is always mapped for reading and writing. */
const ALWAYS_WRITABLE: Readonly<Partial<Record<IpcKind, string>>> = {
  legacy: 'plain device memory',
  pool: 'memory of a pool',
};

/**
 * @param kind what it goes as
 * @throws IpcError for memory that is only to be read, where the driver does not map it so
 */
export function checkExportAccess(kind: IpcMemoryDescriptor['kind'], access: Access): void {
  const what = ALWAYS_WRITABLE[kind];
  if (what && access === 'read')
    throw new IpcError(
      `${what} cannot be shared for reading: the driver gives every process that opens it write ` +
        'access. Share virtual memory (VirtualMemory.reserve(byteLength, { shareable: true })), ' +
        'a copy, or the memory for reading and writing',
      undefined,
      'not-supported',
    );
}

/** What speaks against opening what was shared for reading. */
export function accessBlocker(descriptor: IpcDescriptor): OpenBlocker | undefined {
  const what = ALWAYS_WRITABLE[descriptor.kind];
  if (!what || descriptor.kind === 'event' || descriptor.access !== 'read') return undefined;
  return {
    code: 'not-supported',
    reason: `process ${descriptor.pid} shared ${what} for reading, which the driver maps for writing as well`,
    hint:
      'Have it shared as virtual memory, as a copy, or for reading and writing; ' +
      "{ access: 'read' } keeps cuffi's own copies and fills from writing to that.",
  };
}

/**
 * What memory is mapped for: no more than the options want, its descriptor says, and the file
 * descriptors say that came with it.
 *
 * @param requested what is asked for here
 * @param fds open file descriptors
 */
export function effectiveAccess(
  descriptor: IpcDescriptor,
  requested: Access | undefined,
  fds: readonly number[],
): Access {
  if (requested === 'read') return 'read';
  if (descriptor.kind !== 'event' && descriptor.access === 'read') return 'read';
  return descriptor.kind === 'virtual' && fds.some(isForReading) ? 'read' : 'read-write';
}
