import { IpcError } from '../errors.ts';
import { CudaEvent } from '../event.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import type { Access } from '../memory/buffer-options.ts';
import { allocationBase } from '../memory/legacy-handle.ts';
import { ManagerMemory } from '../memory/manager/manager-memory.ts';
import { MemoryPool } from '../memory/pool.ts';
import { VirtualMemory } from '../memory/virtual.ts';
import { checkRange, type IpcDescriptor, type IpcMemoryDescriptor } from './descriptor.ts';
import { findExport } from './exports.ts';
import { givingBack, type Loan } from './loan.ts';

/**
 * What a descriptor of this very process names, as an object with a `close()` of its own; a pool is
 * itself.
 *
 * @throws IpcError where it is not there any more, ClosedError where it is closed
 */
export function openAlias(
  descriptor: IpcDescriptor,
  access: Access = 'read-write',
  loan?: Loan,
): DeviceBuffer | CudaEvent | MemoryPool {
  const named = findExport(nameOf(descriptor));
  if (descriptor.kind === 'event' && named instanceof CudaEvent) return aliasOfEvent(named, loan);
  if (named instanceof MemoryPool) {
    named.handle; // a closed pool is refused
    loan?.returned();
    return named;
  }
  if (descriptor.kind !== 'event') {
    const view = viewOf(named, descriptor);
    const isReadOnly = access === 'read' || descriptor.access === 'read';
    if (view) return loan ? lentView(view, isReadOnly, loan) : isReadOnly ? view.readOnly() : view;
  }
  throw new IpcError(
    'this descriptor was made by this very process, and what it names is not there any more',
    undefined,
    'same-process',
  );
}

function nameOf(descriptor: IpcDescriptor): string {
  if (descriptor.kind === 'event') return `event ${descriptor.handle}`;
  if (descriptor.kind === 'pool' && descriptor.handle === null) return `pool ${descriptor.pool}`;
  return `memory ${descriptor.generation}`;
}

/** A view whose `close()` is told to the process that sent this memory back. */
function lentView(view: DeviceBuffer, isReadOnly: boolean, loan: Loan): DeviceBuffer {
  const back = givingBack(view.context, (returned) => returned?.(), loan);
  return view.view(0, view.byteLength, isReadOnly ? 'read' : view.access, back);
}

const aliasOfEvent = (event: CudaEvent, loan: Loan | undefined): CudaEvent =>
  new CudaEvent(event.context, event.handle, {
    timing: false,
    interprocess: true,
    imported: false,
    ipcBytes: event.ipcBytes,
    aliasOf: event,
    destroyed: loan && (() => loan.returned()),
  });

/** A manager may give out parts of what it allocates: a descriptor counts from where that begins. */
const bytesBefore = ({ resource, address, context }: DeviceBuffer): number =>
  resource instanceof ManagerMemory ? address - context.run(() => allocationBase(address)) : 0;

function viewOf(named: unknown, descriptor: IpcMemoryDescriptor): DeviceBuffer | undefined {
  const { byteOffset, byteLength } = descriptor;
  if (named instanceof DeviceBuffer) {
    const before = bytesBefore(named);
    if (byteOffset < before) return undefined;
    checkRange(descriptor, before + named.byteLength);
    const begin = byteOffset - before;
    return named.subarray(begin, begin + byteLength);
  }
  if (!(named instanceof VirtualMemory) || descriptor.kind !== 'virtual') return undefined;
  // What the descriptor says of access is whatever its sender likes: its name is not to be guessed.
  const access = named.accessOf(descriptor.memory);
  if (!access) return undefined;
  const first = named.offsetOf(descriptor.firstPiece);
  checkRange(descriptor, named.buffer.byteLength - first);
  const begin = first + byteOffset;
  const view = named.buffer.subarray(begin, begin + byteLength);
  return access === 'read' ? view.readOnly() : view;
}
