import { IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import { type Access, DeviceBuffer } from '../../memory/buffer.ts';
import { ManagerAdapter } from '../../memory/manager/manager-adapter.ts';
import { allocationBase } from '../../memory/pointer-attributes.ts';
import { MemoryPool } from '../../memory/pool.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import { checkRange, type IpcDescriptor, type IpcMemoryDescriptor } from '../descriptor.ts';
import { findExport, nameOfExport } from './export-id.ts';
import { type ImportLease, releaseWithLease, type Sender } from './ownership.ts';
import { exportGone } from './worker-exports.ts';

/**
 * What a descriptor of this very process names, as an object with a `close()` of its own; a pool is
 * itself.
 *
 * @param sender who sent it, where it came over a connection: what is not lent to that is refused
 * @throws IpcError where it is not there any more, ClosedError where it is closed
 */
export function openAlias(
  descriptor: IpcDescriptor,
  access: Access = 'read-write',
  sender?: Sender,
): DeviceBuffer | CudaEvent | MemoryPool {
  const exported = findExport(nameOfExport(descriptor));
  const lease = sender?.lease;
  if (descriptor.kind === 'event' && exported instanceof CudaEvent) {
    checkExportedToSender(exported, sender);
    return aliasOfEvent(exported, lease);
  }
  if (exported instanceof MemoryPool) {
    checkExportedToSender(exported, sender);
    exported.handle; // a closed pool is refused
    lease?.released();
    return exported;
  }
  if (descriptor.kind !== 'event') {
    const isReadOnly = access === 'read' || descriptor.access === 'read';
    const view = aliasView(exported, descriptor, isReadOnly);
    if (view) {
      checkExportedToSender(view, sender);
      return lease ? leasedView(view, lease) : view;
    }
  }
  throw sender && !sender.isOwnProcess ? notExportedToSender() : exportGone();
}

/** The same for what is not there: no sender learns what is. */
export const notExportedToSender = (): IpcError =>
  new IpcError(
    'a descriptor came of memory, a pool or an event of this very process that the process which ' +
      'sent it does not have from here: lend it over a connection first',
    undefined,
    'same-process',
  );

/** @throws IpcError for what this process has not lent to the one that sends it */
function checkExportedToSender(
  object: DeviceBuffer | CudaEvent | MemoryPool,
  sender: Sender | undefined,
): void {
  if (sender && !sender.hasLeaseOn(object)) throw notExportedToSender();
}

/** A view whose `close()` is told to the process that sent this memory back. */
function leasedView(view: DeviceBuffer, lease: ImportLease): DeviceBuffer {
  const leased = releaseWithLease(view.context, (returned) => returned?.(), lease);
  return view.view(0, view.byteLength, view.access, leased);
}

const aliasOfEvent = (event: CudaEvent, lease: ImportLease | undefined): CudaEvent =>
  new CudaEvent(event.context, event.handle, {
    timing: false,
    interprocess: true,
    imported: false,
    ipcBytes: event.ipcBytes,
    aliasOf: event,
    destroyed: lease && (() => lease.released()),
  });

/** A manager may give out parts of what it allocates: a descriptor counts from where that begins. */
const offsetInAllocation = ({ resource, address, context }: DeviceBuffer): number =>
  resource instanceof ManagerAdapter ? address - context.run(() => allocationBase(address)) : 0;

function aliasView(
  exported: unknown,
  descriptor: IpcMemoryDescriptor,
  isReadOnly: boolean,
): DeviceBuffer | undefined {
  const view = rangeView(exported, descriptor);
  return view && isReadOnly ? view.readOnly() : view;
}

function rangeView(exported: unknown, descriptor: IpcMemoryDescriptor): DeviceBuffer | undefined {
  const { byteOffset, byteLength } = descriptor;
  if (exported instanceof DeviceBuffer) {
    const before = offsetInAllocation(exported);
    if (byteOffset < before) return undefined;
    checkRange(descriptor, before + exported.byteLength);
    const begin = byteOffset - before;
    return exported.subarray(begin, begin + byteLength);
  }
  if (!(exported instanceof VirtualMemory) || descriptor.kind !== 'virtual') return undefined;
  // What the descriptor says of access is whatever its sender likes: its name is not to be guessed.
  const access = exported.accessOf(descriptor.memory);
  if (!access) return undefined;
  const first = exported.offsetOf(descriptor.firstPiece);
  checkRange(descriptor, exported.buffer.byteLength - first);
  const begin = first + byteOffset;
  const view = exported.buffer.subarray(begin, begin + byteLength);
  return access === 'read' ? view.readOnly() : view;
}
