/** Where imported objects came from, so that they can be passed on as what they came as. */

import { DeviceBuffer } from '../../memory/buffer.ts';
import { checkInstance } from '../../validate.ts';
import type { Exported, IpcDescriptor, IpcMemoryDescriptor } from '../descriptor.ts';
import { withChecksum } from '../descriptor-bytes.ts';
import { checkExportAccess } from './access.ts';

/** What an object was opened with: the descriptors are kept by the object. */
export interface ImportSource<D extends IpcDescriptor> {
  readonly descriptor: D;
  fds(): readonly number[];
}

// On the object itself: a WeakMap with an entry for each message would keep the collector busy.
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

/** The descriptor that a buffer was opened with, cut down to what it is a view of. */
export function reexportBuffer(
  buffer: DeviceBuffer,
  { descriptor, fds }: ImportSource<IpcMemoryDescriptor>,
): Exported {
  const { address, byteLength, access, root } = buffer;
  checkExportAccess(descriptor.kind, access);
  // Bytes have no layout, whatever they were a part of; and order is for whom it was made.
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
 * Takes what a buffer of another process's memory owns out of it: the buffer that this gives closes
 * the mapping, also where `buffer` goes out of its scope. `buffer` and its views count as closed.
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
  checkInstance(buffer, DeviceBuffer, 'buffer').address; // a closed one is refused
  const source = importSourceOf(buffer);
  if (!buffer.isMapped || buffer.root !== buffer || !source)
    throw new TypeError(
      'only what openIpcBuffer gave of another process has something to move: a view owns nothing, and ' +
        'memory of this process is its own',
    );
  const moved = buffer.moveToNewBuffer();
  setImportSource(moved, source);
  return moved;
}
