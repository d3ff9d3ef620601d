/**
 * Access to memory of other processes. The driver enforces read-only access only for virtual
 * memory, and there its importer chooses the access. So read-only memory is shared as virtual
 * memory or not at all, and an importer does not rely on the descriptor alone.
 */
import { isMarkedReadOnly } from '../../../ffi/fd-kind.ts';
import { IpcError } from '../../errors.ts';
import type { Access } from '../../memory/buffer.ts';
import type { IpcDescriptor, IpcKind, IpcMemoryDescriptor } from '../descriptor.ts';
import type { OpenBlocker } from './support.ts';

/** Names of the kinds that the driver always maps for reading and writing. */
const ALWAYS_WRITABLE: Readonly<Partial<Record<IpcKind, string>>> = {
  legacy: 'plain device memory',
  pool: 'memory of a pool',
};

/**
 * @param kind the kind that it is shared as
 * @throws IpcError for read-only memory of a kind that the driver cannot map read-only
 */
export function checkExportAccess(kind: IpcMemoryDescriptor['kind'], access: Access): void {
  const what = ALWAYS_WRITABLE[kind];
  if (what && access === 'read')
    throw new IpcError(
      `${what} cannot be shared read-only: the driver gives every process that opens it write ` +
        'access. Share virtual memory (VirtualMemory.reserve(byteLength, { shareable: true })), ' +
        'a copy, or the memory for reading and writing',
      undefined,
      'not-supported',
    );
}

/** Returns what prevents opening memory that was shared read-only. */
export function accessBlocker(descriptor: IpcDescriptor): OpenBlocker | undefined {
  const what = ALWAYS_WRITABLE[descriptor.kind];
  if (!what || descriptor.kind === 'event' || descriptor.access !== 'read') return undefined;
  return {
    code: 'not-supported',
    reason: `process ${descriptor.pid} shared ${what} read-only, but the driver maps it for writing as well`,
    hint:
      'Ask that process to share virtual memory, a copy, or the memory for reading and writing; ' +
      "{ access: 'read' } keeps cuffi's own copies and fills from writing to it.",
  };
}

/**
 * Returns the access that memory is mapped with: the least of what the options, the descriptor and
 * its file descriptors allow.
 *
 * @param requested the access that the caller asks for
 * @param fds open file descriptors
 */
export function effectiveAccess(
  descriptor: IpcDescriptor,
  requested: Access | undefined,
  fds: readonly number[],
): Access {
  if (requested === 'read') return 'read';
  if (descriptor.kind !== 'event' && descriptor.access === 'read') return 'read';
  return descriptor.kind === 'virtual' && fds.some(isMarkedReadOnly) ? 'read' : 'read-write';
}
