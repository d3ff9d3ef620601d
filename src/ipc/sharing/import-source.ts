/**
 * The descriptor and file descriptors that imported objects were opened with, so that they can be
 * exported again.
 */

import { DeviceBuffer } from '../../memory/buffer.ts';
import { checkInstance } from '../../validate.ts';
import type { Exported, IpcDescriptor, IpcMemoryDescriptor } from '../descriptor.ts';
import { withChecksum } from '../descriptor-bytes.ts';
import { checkExportAccess } from './access.ts';

/**
 * The descriptor and file descriptors that an object was opened with. The object keeps the file
 * descriptors open.
 */
export interface ImportSource<D extends IpcDescriptor> {
  readonly descriptor: D;
  fds(): readonly number[];
}

// Stored on the object: a WeakMap with an entry for each message would slow down garbage
// collection.
const IMPORT_SOURCE = Symbol('origin');

interface WithImportSource {
  [IMPORT_SOURCE]?: ImportSource<IpcDescriptor>;
}

export function setImportSource<D extends IpcDescriptor>(
  object: object,
  source: ImportSource<D>,
): void {
  (object as WithImportSource)[IMPORT_SOURCE] = source;
}

export const importSourceOf = (object: object): ImportSource<IpcDescriptor> | undefined =>
  (object as WithImportSource)[IMPORT_SOURCE];

/** Exports an imported buffer again: the descriptor it was opened with, narrowed to this view. */
export function reexportBuffer(
  buffer: DeviceBuffer,
  { descriptor, fds }: ImportSource<IpcMemoryDescriptor>,
): Exported {
  const { address, byteLength, access, root } = buffer;
  checkExportAccess(descriptor.kind, access);
  // Bytes have no layout, and the ready event was for this process.
  const { layout: _, readyEvent: __, ...fields } = descriptor;
  const narrowed = {
    ...fields,
    byteOffset: descriptor.byteOffset + (address - root.address),
    byteLength,
    access,
  };
  return { descriptor: withChecksum(narrowed as never), fds: fds() };
}

/**
 * Moves the ownership of imported memory to a new buffer. The returned buffer closes the mapping,
 * even if `buffer` goes out of scope. `buffer` and its views count as closed.
 *
 * @throws TypeError for a view, and for a buffer of this process's own memory; CuffiError while a
 * handle made of it is open; ClosedError
 * @example
 * function open(message: unknown): DeviceBuffer {
 *   using buffer = openIpcBuffer(message);
 *   check(buffer); // what throws closes it
 *   return moveIpcBuffer(buffer);
 * }
 */
export function moveIpcBuffer(buffer: DeviceBuffer): DeviceBuffer {
  checkInstance(buffer, DeviceBuffer, 'buffer').assertOpen();
  const source = importSourceOf(buffer);
  if (!buffer.isMapped || buffer.root !== buffer || !source)
    throw new TypeError(
      'only a buffer of another process that openIpcBuffer returned can be moved: a view and memory of ' +
        'this process own no mapping',
    );
  const moved = buffer.moveToNewBuffer();
  setImportSource(moved, source);
  return moved;
}
