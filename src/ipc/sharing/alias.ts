import { IpcError } from '../../errors.ts';
import { CudaEvent } from '../../event.ts';
import { type Access, DeviceBuffer } from '../../memory/buffer.ts';
import { ManagerMemory } from '../../memory/manager/manager-memory.ts';
import { allocationBase } from '../../memory/pointer.ts';
import { MemoryPool } from '../../memory/pool.ts';
import { VirtualMemory } from '../../memory/virtual.ts';
import { checkRange, type IpcDescriptor, type IpcMemoryDescriptor } from '../descriptor.ts';
import { findExport, nameOfExport } from './export-id.ts';
import { givingBack, type Loan, type Sender } from './ownership.ts';
import { gone } from './worker-exports.ts';

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
  const named = findExport(nameOfExport(descriptor));
  const loan = sender?.loan;
  if (descriptor.kind === 'event' && named instanceof CudaEvent) {
    checkLent(named, sender);
    return aliasOfEvent(named, loan);
  }
  if (named instanceof MemoryPool) {
    checkLent(named, sender);
    named.handle; // a closed pool is refused
    loan?.returned();
    return named;
  }
  if (descriptor.kind !== 'event') {
    const isReadOnly = access === 'read' || descriptor.access === 'read';
    const view = viewOf(named, descriptor, isReadOnly);
    if (view) {
      checkLent(view, sender);
      return loan ? lentView(view, loan) : view;
    }
  }
  throw sender && !sender.isOwnProcess ? notLent() : gone();
}

/** The same for what is not there: no sender learns what is. */
export const notLent = (): IpcError =>
  new IpcError(
    'a descriptor came of memory, a pool or an event of this very process that the process which ' +
      'sent it does not have from here: lend it over a connection first',
    undefined,
    'same-process',
  );

/** @throws IpcError for what this process has not lent to the one that sends it */
function checkLent(
  object: DeviceBuffer | CudaEvent | MemoryPool,
  sender: Sender | undefined,
): void {
  if (sender && !sender.has(object)) throw notLent();
}

/** A view whose `close()` is told to the process that sent this memory back. */
function lentView(view: DeviceBuffer, loan: Loan): DeviceBuffer {
  const back = givingBack(view.context, (returned) => returned?.(), loan);
  return view.view(0, view.byteLength, view.access, back);
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

function viewOf(
  named: unknown,
  descriptor: IpcMemoryDescriptor,
  isReadOnly: boolean,
): DeviceBuffer | undefined {
  const view = wholeView(named, descriptor);
  return view && isReadOnly ? view.readOnly() : view;
}

function wholeView(named: unknown, descriptor: IpcMemoryDescriptor): DeviceBuffer | undefined {
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
