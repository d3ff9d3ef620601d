import { ClosedError, IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import { type Access, DeviceBuffer } from '../../memory/buffer.ts';
import { ManagerAdapter } from '../../memory/manager/manager-adapter.ts';
import { allocationBase } from '../../memory/pointer-attributes.ts';
import { MemoryPool } from '../../memory/pool.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import { checkRange, type DescriptorFields, type MemoryFields } from '../descriptor.ts';
import { findExport, nameOfExport } from './exported.ts';
import { type ImportLease, ImportRelease, type Sender } from './imported-object.ts';
import { blockedError } from './support.ts';
import { exportGoneBlocker } from './worker-exports.ts';

/**
 * Opens a descriptor that this process made, as a view with its own `close()`. A pool is returned
 * itself.
 *
 * @param sender the sender, if it came over a connection: only what was exported to it may be
 * opened
 * @throws IpcError if the object no longer exists, ClosedError if it is closed
 */
export function openAlias(
  descriptor: DescriptorFields,
  access: Access = 'read-write',
  sender?: Sender,
): DeviceBuffer | CudaEvent | MemoryPool {
  const name = nameOfExport(descriptor);
  const exported = findExport(name);
  const lease = sender?.lease;
  if (descriptor.kind === 'event' && exported instanceof CudaEvent) {
    checkExportedToSender(exported, sender);
    return aliasOfEvent(exported, lease);
  }
  if (exported instanceof MemoryPool) {
    checkExportedToSender(exported, sender);
    exported.assertOpen();
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
  // An object is collected some time after it was closed, which must not change the error.
  if (sender?.hasLeaseOnCollected(name)) throw new ClosedError('it was closed, and then collected');
  throw sender && !sender.isOwnProcess ? notExportedToSender() : blockedError(exportGoneBlocker);
}

/** Also thrown for what does not exist, so that a sender cannot find out what does. */
export const notExportedToSender = (): IpcError =>
  new IpcError(
    'a peer sent a descriptor of memory, a pool or an event of this very process that it holds no lease ' +
      'on: send the object to it over a connection first',
    undefined,
    'same-process',
  );

/** @throws IpcError for an object that was not exported to the sender */
function checkExportedToSender(
  object: DeviceBuffer | CudaEvent | MemoryPool,
  sender: Sender | undefined,
): void {
  if (sender && !sender.hasLeaseOn(object)) throw notExportedToSender();
}

/** Returns a view whose `close()` notifies the process that sent this memory back. */
function leasedView(view: DeviceBuffer, lease: ImportLease): DeviceBuffer {
  const leased = new ImportRelease(view.context, (returned) => returned?.(), lease, false);
  return view.view(0, view.byteLength, view.access, { release: () => leased.release() });
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

/**
 * A memory manager may return parts of its allocations. Descriptors count from the start of the
 * allocation.
 */
const offsetInAllocation = ({
  resource,
  readableAddress: address,
  context,
}: DeviceBuffer): number =>
  resource instanceof ManagerAdapter ? address - context.run(() => allocationBase(address)) : 0;

function aliasView(
  exported: unknown,
  descriptor: MemoryFields,
  isReadOnly: boolean,
): DeviceBuffer | undefined {
  const view = rangeView(exported, descriptor);
  return view && isReadOnly ? view.readOnly() : view;
}

function rangeView(exported: unknown, descriptor: MemoryFields): DeviceBuffer | undefined {
  const { byteOffset, byteLength } = descriptor;
  if (exported instanceof DeviceBuffer) {
    const before = offsetInAllocation(exported);
    if (byteOffset < before) return undefined;
    checkRange(descriptor, before + exported.byteLength);
    const begin = byteOffset - before;
    return exported.subarray(begin, begin + byteLength);
  }
  if (!(exported instanceof VirtualMemory) || descriptor.kind !== 'virtual') return undefined;
  // The sender may state any access in the descriptor, but cannot guess the memory's name.
  const access = exported.accessOf(descriptor.memory);
  if (!access) return undefined;
  const first = exported.offsetOf(descriptor.firstPiece);
  checkRange(descriptor, exported.buffer.byteLength - first);
  const begin = first + byteOffset;
  const view = exported.buffer.subarray(begin, begin + byteLength);
  return access === 'read' ? view.readOnly() : view;
}
