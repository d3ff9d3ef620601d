/** Buffers in memory of other processes that is open here: how they are made, closed and exported again. */

import type { CUdeviceptr } from '../../../ffi/types.ts';
import type { Context } from '../../context.ts';
import { type BufferInit, DeviceBuffer, type StreamOrderedRelease } from '../../memory/buffer.ts';
import { addOrderedMemory, MemoryUses, removeOrderedMemory } from '../../memory/use-order.ts';
import type { Stream } from '../../stream.ts';
import { checkInstance } from '../../validate.ts';
import { checkRange, type ExportedFields, type MemoryFields } from '../descriptor.ts';
import { isExporterGone } from '../identity.ts';
import { factsOf, type ImportSource, knownFacts } from './facts.ts';
import type { ImportLease, OpenRequest } from './kind.ts';
import type { Mapping, MappingUse } from './mapping.ts';
import { refuseReadOnly } from './support.ts';

/**
 * How imported memory is closed: its exporter is notified, and the mapping is released. A class, as
 * each hand-over makes one: an object literal with spread parts took 3 µs.
 */
export class ImportRelease implements StreamOrderedRelease {
  /** Undefined if nobody asks, or if not all uses of the memory are seen: those of a part of other memory. */
  readonly uses: MemoryUses | undefined;
  readonly #context: Context;
  readonly #release: (onReleased?: () => void) => void;
  readonly #lease: ImportLease | undefined;
  readonly #isStreamOrdered: boolean;
  #lastStream: Stream | undefined;

  /**
   * @param isRoot whether all uses of the memory are seen
   * @param isStreamOrdered whether a stream that `close()` names says after which work the memory may
   * be released
   */
  constructor(
    context: Context,
    release: (onReleased?: () => void) => void,
    lease: ImportLease | undefined,
    isRoot: boolean,
    isStreamOrdered = true,
  ) {
    this.#context = context;
    this.#release = release;
    this.#lease = lease;
    this.#isStreamOrdered = isStreamOrdered;
    if (!lease || !isRoot) return;
    this.uses = new MemoryUses();
    addOrderedMemory();
  }

  setStream(stream: Stream): void {
    if (!this.#isStreamOrdered) return;
    this.#context.workTracker.addOtherContext(stream.context.workTracker);
    this.#lastStream = stream;
  }

  release(): void {
    if (this.uses) removeOrderedMemory();
    const release = this.#release;
    const lease = this.#lease;
    if (!lease) {
      release();
      return;
    }
    try {
      lease.closed(this.#context, this.#lastStream ? [this.#lastStream] : this.uses?.streams);
    } finally {
      release(() => lease.released());
    }
  }
}

/** @internal What an imported buffer is made of, besides its request. */
interface ImportedBufferInit
  extends Pick<BufferInit, 'resource' | 'owner' | 'mappingBoundaries' | 'deviceAccess'> {
  /** The use of the mapping that contains the descriptor's range. The buffer releases it. */
  readonly use: MappingUse<Mapping>;
  /** The file descriptors that exporting it again needs. */
  readonly fds: () => readonly number[];
  /** Whether a stream that `close()` names says after which work the memory may be released. */
  readonly isStreamOrdered?: boolean;
}

/**
 * @internal Returns the buffer for the range of a descriptor in a mapping.
 *
 * @throws IpcError for a range beyond the mapping, which may be smaller than the descriptor says or
 * belong to an earlier descriptor; its use is then released
 */
export function importedBuffer(
  request: Pick<OpenRequest<MemoryFields>, 'descriptor' | 'context' | 'access' | 'lease'>,
  { use, fds, isStreamOrdered = true, ...init }: ImportedBufferInit,
): DeviceBuffer {
  const { descriptor, context, access, lease } = request;
  const { base, byteLength } = use.mapping;
  try {
    checkRange(descriptor, byteLength);
  } catch (error) {
    use.release();
    throw error;
  }
  const buffer = new DeviceBuffer({
    context,
    address: (base + descriptor.byteOffset) as CUdeviceptr,
    byteLength: descriptor.byteLength,
    origin: 'imported',
    release: new ImportRelease(context, use.release, lease, true, isStreamOrdered),
    isOwnerGone: () => isExporterGone(descriptor),
    access,
    ...init,
  });
  factsOf(buffer).source = { descriptor, fds };
  return buffer;
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
  const facts = knownFacts(buffer);
  if (!buffer.isMapped || buffer.root !== buffer || !facts?.source)
    throw new TypeError(
      'only a buffer of another process that openIpcBuffer returned can be moved: a view and memory of ' +
        'this process own no mapping',
    );
  const moved = buffer.moveToNewBuffer();
  const { source, owner } = facts;
  Object.assign(factsOf(moved), { source, owner });
  return moved;
}

/** What an imported buffer was opened with; undefined for memory of this process. */
export const sourceOf = ({ origin, root }: DeviceBuffer): ImportSource<MemoryFields> | undefined =>
  origin === 'imported'
    ? (knownFacts(root)?.source as ImportSource<MemoryFields> | undefined)
    : undefined;

/**
 * Exports an imported buffer again: the descriptor it was opened with, narrowed to this view.
 *
 * @param alwaysWritable as in the row of its kind
 */
export function reexportBuffer(
  buffer: DeviceBuffer,
  { descriptor, fds }: ImportSource<MemoryFields>,
  alwaysWritable: string | undefined,
): ExportedFields {
  const { readableAddress: address, byteLength, access, root } = buffer;
  if (access === 'read' && alwaysWritable) refuseReadOnly(alwaysWritable);
  // Bytes have no layout, and the ready event was for this process.
  const { layout: _, readyEvent: __, ...fields } = descriptor;
  const byteOffset = descriptor.byteOffset + (address - root.readableAddress);
  return { descriptor: { ...fields, byteOffset, byteLength, access }, fds: fds() };
}
